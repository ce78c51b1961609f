"""Single steps for replay: [S, ...], S = num_batches * batch_size, in the order of the draw.

Everything is gathered by index arrays, one call per slab and column: thousands of chunks cost as
much as a few.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rollbus_learner.slab_views import Buffers, Columns, Slabs
from rollbus_wire.errors import PeerLost, StaleRead
from rollbus_wire.messages import Batch

#: Columns that are not of one decision.
_PER_ROW = frozenset({"lengths", "last_step", "last_value", "carry"})
_FINALS = ("final_return", "final_length", "final_success_once", "final_success_at_end")


@dataclass
class Part:
    """The samples of one slab: where they are in it, and their places in the batch."""

    columns: Columns
    generations: np.ndarray
    depth: int
    place: np.ndarray
    cell: np.ndarray
    time: np.ndarray
    row: np.ndarray


def gather(slabs: Slabs, message: Batch, buffers: Buffers) -> tuple[Columns, int]:
    """The steps that ``message`` draws, and how many of its chunks were not readable.

    ``obs/*`` and ``next_obs/*`` [S, ...] (with frame stacks [S, K, ...]), where the episode ended the
    latter is the final observation; the decision columns [S, ...]; ``valid`` bool [S]: not
    interrupted, readable, and with its final observation if truncated. Raises `StaleRead` if no
    sample is readable.
    """
    assert message.chunk is not None and message.chunk_generation is not None
    readable = np.zeros(message.chunk.size, bool)
    chunk = message.chunk.ravel()
    batch: Columns = {}
    for part in _parts(slabs, message):
        _copy(part, batch, readable.size, buffers)
        same = part.generations[part.cell] == message.chunk_generation[chunk[part.place]]
        readable[part.place] = same
    if not readable.any():
        raise StaleRead(
            f"none of {readable.size} samples is readable any more: "
            "the store freed their chunks before they were read"
        )
    lost = batch["truncated"] & ~batch["terminated"] & (batch["final_slot"] < 0)
    batch["valid"] = readable & ~batch["interrupted"] & ~lost
    return batch, len(np.unique(chunk[~readable]))


def _parts(slabs: Slabs, message: Batch) -> list[Part]:
    """The samples by slab, without those of slabs that are gone."""
    assert message.chunk is not None and message.time is not None and message.row is not None
    assert message.chunk_slab is not None and message.chunk_offset is not None
    chunk, time, row = message.chunk.ravel(), message.time.ravel(), message.row.ravel()
    slab = message.chunk_slab[chunk]
    order = np.argsort(slab, kind="stable")
    bounds = np.searchsorted(slab[order], np.arange(len(message.slabs) + 1))
    parts = []
    for index, item in enumerate(message.slabs):
        place = order[bounds[index] : bounds[index + 1]]
        if not len(place):
            continue
        try:
            layout, columns, generations = slabs.open(item)
        except PeerLost:
            slabs.forget(int(item["slab"]))
            continue
        cell = message.chunk_offset[chunk[place]] // layout.cell_bytes
        parts.append(Part(columns, generations, layout.num_history + 1, place, cell, time[place], row[place]))
    return parts


def _copy(part: Part, batch: Columns, num: int, buffers: Buffers) -> None:
    """Gather all columns of ``part`` into their places in ``batch``."""
    here = (part.cell, part.time, part.row)

    def target(name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        if name not in batch:
            batch[name] = buffers.get(name, (num, *shape), dtype)
            if len(part.place) < num:
                batch[name].fill(0)
        return batch[name]

    for name, column in part.columns.items():
        if name in _PER_ROW or (name.startswith("final_") and name != "final_slot"):
            continue
        if not name.startswith("obs/"):
            target(name, column.shape[3:], column.dtype)[part.place] = column[here]
    ended = (batch["terminated"] | batch["truncated"])[part.place] & (batch["final_slot"][part.place] >= 0)
    begun = _since_start(part)
    for name, column in part.columns.items():
        if name.startswith("obs/"):
            inner = column.shape[3:] if part.depth == 1 else (part.depth, *column.shape[3:])
            _observe(part, name, column, begun, target(name, inner, column.dtype))
            following = target(f"next_{name}", inner, column.dtype)
            _observe_next(part, name, column, begun, ended, batch["final_slot"], following)


def _since_start(part: Part) -> np.ndarray:
    """int [s]: decisions since the first of the episode, up to K-1 (more count as K-1)."""
    begun = np.full(len(part.place), max(0, part.depth - 1))
    step = part.columns["step"]
    for age in reversed(range(part.depth - 1)):
        time = part.time - age
        begun[(time >= 0) & (step[part.cell, np.maximum(time, 0), part.row] == 0)] = age
    return begun


def _observe(part: Part, name: str, column: np.ndarray, begun: np.ndarray, target: np.ndarray) -> None:
    last = part.time + part.depth - 1
    if part.depth == 1:
        target[part.place] = column[part.cell, last, part.row]
        return
    for place in range(part.depth):
        age = np.minimum(part.depth - 1 - place, begun)
        target[part.place, place] = column[part.cell, last - age, part.row]


def _observe_next(
    part: Part, name: str, column: np.ndarray, begun: np.ndarray, ended: np.ndarray,
    final_slot: np.ndarray, target: np.ndarray,
) -> None:  # fmt: skip
    """The observation after the step: obs[t+1], or the final one; older frames are the same for both."""
    newest = target if part.depth == 1 else target[:, -1]
    last = part.time + part.depth - 1
    newest[part.place] = column[part.cell, last + 1, part.row]
    final = part.columns["final_" + name]
    where = part.place[ended]
    newest[where] = final[part.cell[ended], np.minimum(final_slot[where], final.shape[1] - 1)]
    for place in range(part.depth - 1):
        age = np.minimum(part.depth - 2 - place, begun)
        target[part.place, place] = column[part.cell, last - age, part.row]


class FreshEpisodes:
    """Episodes that ended in chunks not seen before, so that each is reported once."""

    def __init__(self) -> None:
        self._seen: dict[int, np.ndarray] = {}

    def take(self, slabs: Slabs, message: Batch) -> Columns:
        """``final_*`` [E] of the episodes that ended in the new chunks of ``message``."""
        assert message.chunk_slab is not None and message.chunk_offset is not None
        assert message.chunk_generation is not None
        found: dict[str, list[np.ndarray]] = {name: [] for name in _FINALS}
        for index, item in enumerate(message.slabs):
            try:
                layout, columns, generations = slabs.open(item)
            except PeerLost:
                continue
            mine = message.chunk_slab == index
            cells = message.chunk_offset[mine] // layout.cell_bytes
            named = message.chunk_generation[mine]
            seen = self._seen.setdefault(int(item["slab"]), np.zeros(len(generations), np.uint64))
            new = (seen[cells] != named) & (generations[cells] == named)
            seen[cells] = named
            for cell in cells[new]:
                slots = _ended_slots({name: columns[name][cell] for name in _ENDS})
                for name in _FINALS:
                    found[name].append(columns[name][cell][slots])
        return {name: np.concatenate(parts) for name, parts in found.items() if parts}


_ENDS = ("final_slot", "lengths", "terminated", "truncated")


def _ended_slots(cell: Columns) -> np.ndarray:
    """Final slots of the episodes that ended in a chunk; not those that were interrupted."""
    slot = cell["final_slot"]
    inside = np.arange(len(slot))[:, None] < cell["lengths"]
    return slot[inside & (slot >= 0) & (cell["terminated"] | cell["truncated"])]
