"""Single steps for replay: [S, ...], S = num_batches * batch_size, in the order of the draw.

Everything is gathered by index arrays, one call per slab and column: thousands of chunks cost as
much as a few.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from rollbus_learner.slab_views import Buffers, Columns, Slabs, SlabView
from rollbus_wire.errors import PeerLost, StaleRead
from rollbus_wire.messages import Batch

#: Of a stretch of decisions those of its last one count.
_OF_END = ("terminated", "truncated", "interrupted", "final_slot")
#: Columns that are not of one decision.
_PER_ROW = frozenset({"lengths", "last_step", "last_value", "carry"})


@dataclass
class Part:
    """The samples of one slab: where they are in it, and their places in the batch."""

    view: SlabView
    place: np.ndarray
    cell: np.ndarray
    time: np.ndarray
    row: np.ndarray

    @property
    def depth(self) -> int:
        """Stacked frames, K."""
        return self.view.layout.num_history + 1

    def at(self, time: np.ndarray) -> np.ndarray:
        """Index of (time, row) among the joined first two dimensions of a column."""
        return time * self.view.layout.num_rows + self.row


class Target:
    """The batch that parts are written to; ``num`` samples."""

    def __init__(self, num: int, whole: bool, buffers: Buffers) -> None:
        self.batch: Columns = {}
        self._num, self._whole, self._buffers = num, whole, buffers

    def column(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """The column [S, ...]; zeros where slabs are gone."""
        if name not in self.batch:
            self.batch[name] = self._buffers.get(name, (self._num, *shape), dtype)
            if not self._whole:
                self.batch[name].fill(0)
        return self.batch[name]


Relabelling = Callable[[Part, Target, int], None]


def gather(
    slabs: Slabs, message: Batch, buffers: Buffers, n_step: int = 1, relabel: Relabelling | None = None
) -> tuple[Columns, int]:
    """The steps that ``message`` draws, and how many of its chunks were not readable.

    ``obs/*`` and ``next_obs/*`` [S, ...] (with frame stacks [S, K, ...]), where the episode ended the
    latter is the final observation; the decision columns [S, ...]; ``valid`` bool [S]: not
    interrupted, readable, and with its final observation if truncated. ``n_step``: see `Feed`.
    ``relabel`` may change what was written for a part; it gets the number of the draw.

    Raises `StaleRead` if no sample is readable.
    """
    assert message.chunk is not None and message.chunk_generation is not None
    chunk = message.chunk.ravel()
    readable = np.zeros(len(chunk), bool)
    parts = parts_of(slabs, message)
    target = Target(len(chunk), sum(len(part.place) for part in parts) == len(chunk), buffers)
    for part in parts:
        _copy(part, target, n_step)
        if relabel is not None:
            relabel(part, target, message.sequence)
        readable[part.place] = part.view.generations[part.cell] == message.chunk_generation[chunk[part.place]]
    if not readable.any():
        raise StaleRead(
            f"none of {readable.size} samples is readable any more: "
            "the store freed their chunks before they were read"
        )
    batch = target.batch
    if message.step is not None and message.probability is not None:
        batch["drawn"], batch["probability"] = message.step.ravel(), message.probability.ravel()
    for name, column in (message.late or {}).items():
        batch[f"late/{name}"] = column.ravel()
    lost = batch["truncated"] & ~batch["terminated"] & (batch["final_slot"] < 0)
    batch["valid"] = readable & ~batch["interrupted"] & ~lost
    return batch, len(np.unique(chunk[~readable]))


def parts_of(slabs: Slabs, message: Batch) -> list[Part]:
    """The samples by slab, without those of slabs that are gone; within a slab in the order of memory."""
    assert message.chunk is not None and message.time is not None and message.row is not None
    assert message.chunk_slab is not None and message.chunk_offset is not None
    by_memory = np.lexsort((message.chunk_offset, message.chunk_slab))
    rank = np.empty_like(by_memory)
    rank[by_memory] = np.arange(len(rank))
    order = np.argsort(rank[message.chunk.ravel()], kind="stable")
    chunk, time, row = (index.ravel()[order] for index in (message.chunk, message.time, message.row))
    bounds = np.searchsorted(message.chunk_slab[chunk], np.arange(len(message.slabs) + 1))
    offset, parts = message.chunk_offset[chunk], []
    for item, begin, end in zip(message.slabs, bounds[:-1], bounds[1:]):
        if begin == end:
            continue
        try:
            view = slabs.open(item)
        except PeerLost:
            slabs.forget(int(item["slab"]))
            continue
        mine = slice(begin, end)
        parts.append(Part(view, order[mine], view.cell(offset[mine]), time[mine], row[mine]))
    return parts


def _copy(part: Part, target: Target, n_step: int) -> None:
    """Gather all columns of ``part`` into their places."""
    columns, here, end = part.view.columns, part.at(part.time), part
    for name, column in columns.items():
        final = name.startswith("final_") and name != "final_slot"
        if not final and name not in _PER_ROW and not name.startswith("obs/"):
            _put(target.column(name, column.shape[3:], column.dtype), part, name, here)
    if n_step > 1:
        end = end_of_stretch(part, n_step)
        _add_returns(part, end, target, n_step)
        for name in _OF_END:
            _put(target.batch[name], end, name, end.at(end.time))
    begun = _since_start(part)
    for name, column in columns.items():
        if not name.startswith("obs/"):
            continue
        inner = column.shape[3:] if part.depth == 1 else (part.depth, *column.shape[3:])
        obs = target.column(name, inner, column.dtype)
        following = newest = target.column(f"next_{name}", inner, column.dtype)
        if part.depth == 1:
            _put(obs, part, name, here)
        else:
            newest = following[:, -1]
            _stack(obs, part, name, begun)
            _older(obs, following, part, end, name)
        put_following(newest, end, name)


def _put(target: np.ndarray, part: Part, name: str, at: np.ndarray) -> None:
    """Gather the items ``at`` of column ``name`` into the places of ``part`` in ``target`` [S, ...]."""
    records = part.view.records(name, 2)
    found = records[part.cell, at]
    if records.dtype.kind != "V":
        target[part.place] = found
    elif target.flags.c_contiguous:
        target.reshape(len(target), -1).view(records.dtype)[part.place, 0] = found
    else:
        target[part.place] = found.view(target.dtype).reshape(-1, *target.shape[1:])


def put_following(newest: np.ndarray, part: Part, name: str) -> None:
    """The observation after each decision, at an end the final one, into its place in ``newest`` [S, ...]."""
    columns, at = part.view.columns, (part.cell, part.time, part.row)
    _put(newest, part, name, part.at(part.time + part.depth))
    slot, finals = columns["final_slot"][at], columns["final_" + name]
    ended = np.flatnonzero((columns["terminated"][at] | columns["truncated"][at]) & (slot >= 0))
    newest[part.place[ended]] = finals[part.cell[ended], np.minimum(slot[ended], finals.shape[1] - 1)]


def _stack(obs: np.ndarray, part: Part, name: str, begun: np.ndarray) -> None:
    """All frames of ``obs`` [S, K, ...]."""
    last = part.time + part.depth - 1
    for place in range(part.depth):
        age = np.minimum(part.depth - 1 - place, begun)
        _put(obs[:, place], part, name, part.at(last - age))


def _older(obs: np.ndarray, following: np.ndarray, part: Part, end: Part, name: str) -> None:
    """The K-1 older frames of ``following`` [S, K, ...]: the newer ones at the end of each stretch."""
    if end is not part:
        _stack(following, end, name, _since_start(end))
        obs = following
    for place in range(1, part.depth):
        following[part.place, place - 1] = obs[part.place, place]


def end_of_stretch(part: Part, n_step: int) -> Part:
    """The last decision of each stretch of at most ``n_step``.

    A stretch goes on while the episode does, to the chunk's end at most; a decision that is no outcome
    (interrupted, or truncated without its final observation) is not taken in.
    """
    columns, cell, row = part.view.columns, part.cell, part.row
    length = np.minimum(columns["lengths"][cell, row], part.view.layout.num_decisions)
    last, goes_on = part.time.copy(), np.ones(len(part.time), bool)
    for ahead in range(1, n_step):
        before, now = last, np.minimum(part.time + ahead, part.view.layout.num_decisions - 1)
        ended = [columns[name][cell, before, row] for name in ("terminated", "truncated", "interrupted")]
        lost = columns["truncated"][cell, now, row] & ~columns["terminated"][cell, now, row]
        lost &= columns["final_slot"][cell, now, row] < 0
        goes_on &= (part.time + ahead < length) & ~np.any(ended, 0)
        goes_on &= ~lost & ~columns["interrupted"][cell, now, row]
        last = np.where(goes_on, now, last)
    return replace(part, time=last)


def _add_returns(part: Part, end: Part, target: Target, n_step: int) -> None:
    """``n_step_reward`` [S, n C], rewards of executed steps without gaps, and ``n_step_num`` [S]."""
    columns, width = part.view.columns, part.view.columns["reward"].shape[-1]
    rewards = np.zeros((len(part.place), n_step * width), columns["reward"].dtype)
    num = np.zeros(len(part.place), np.int32)
    for ahead in range(n_step):
        now = np.minimum(part.time + ahead, end.time)
        steps = np.where(part.time + ahead <= end.time, columns["num_steps"][part.cell, now, part.row], 0)
        sample, place = np.nonzero(np.arange(width) < steps[:, None])
        found = columns["reward"][part.cell, now, part.row]
        rewards[sample, np.minimum(num[sample] + place, n_step * width - 1)] = found[sample, place]
        num += steps.astype(np.int32)
    target.column("n_step_reward", rewards.shape[1:], rewards.dtype)[part.place] = rewards
    target.column("n_step_num", (), num.dtype)[part.place] = num


def _since_start(part: Part) -> np.ndarray:
    """int [s]: decisions since the first of the episode, up to K-1 (more count as K-1)."""
    begun = np.full(len(part.place), part.depth - 1)
    step = part.view.columns["step"]
    for age in reversed(range(part.depth - 1)):
        time = part.time - age
        begun[(time >= 0) & (step[part.cell, np.maximum(time, 0), part.row] == 0)] = age
    return begun
