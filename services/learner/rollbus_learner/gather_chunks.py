"""Whole chunks side by side: [T, N, ...], where N counts the rows of all chunks.

Symbols: T the longest chunk, N rows, K stacked frames, M final observations, S state size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rollbus_core.weights.digests import digest
from rollbus_learner.slab_views import Buffers, Columns, Slabs, SlabView
from rollbus_wire.errors import PeerLost

#: Columns [N], which have no time dimension.
_PER_ROW = frozenset({"lengths", "last_step", "last_value", "carry"})


@dataclass
class Chunk:
    """One readable chunk and its place in the batch."""

    view: SlabView
    cell: int
    generation: int
    lengths: np.ndarray
    num_finals: int
    #: Decisions of its longest row.
    length: int
    #: Late columns, float32 [T, N] each.
    late: dict[str, np.ndarray] = field(default_factory=dict)
    rows: slice = field(default_factory=lambda: slice(0))
    finals: slice = field(default_factory=lambda: slice(0))

    @property
    def stale(self) -> bool:
        """Whether the store has given the cell to another chunk."""
        return int(self.view.generations[self.cell]) != self.generation

    def column(self, name: str) -> np.ndarray:
        """The column of this chunk's cell."""
        return self.view.columns[name][self.cell]


def gather(
    slabs: Slabs, items: Sequence[dict[str, Any]], buffers: Buffers
) -> tuple[Columns | None, dict[int, str]]:
    """The chunks that ``items`` name, sorted by (slice, order), and the places of those left out.

    A chunk is left out if it is "stale" (the store has freed it) or "corrupt" (its digest differs).

    ``obs/*`` [T+1, N, ...] and ``final_obs/*`` [M, ...], both with a K dimension before the
    observation's own if frames are stacked; ``valid`` bool [T, N]; ``start`` bool [T, N];
    ``state`` float32 [N, S]; ``late/*`` float32 [T, N] what annotators attached; all other columns as
    `chunk_columns` names them. None if no chunk is left.
    """
    places = sorted(
        range(len(items)),
        key=lambda i: (items[i]["slice"], list(items[i]["order"]), items[i]["sequence"]),
    )
    found = {place: _open(slabs, items[place]) for place in places}
    unread = {place: chunk for place, chunk in found.items() if isinstance(chunk, str)}
    chunks = {place: chunk for place, chunk in found.items() if isinstance(chunk, Chunk)}
    while chunks:
        batch = _copy(list(chunks.values()), buffers)
        stale = {place: "stale" for place, chunk in chunks.items() if chunk.stale}
        if not stale:
            return batch, unread
        unread |= stale
        for place in stale:
            slabs.forget(chunks.pop(place).view.slab)
    return None, unread


def _open(slabs: Slabs, item: dict[str, Any]) -> Chunk | str:
    """The chunk, or why it is left out."""
    try:
        view = slabs.open(item)
    except PeerLost:
        slabs.forget(int(item["slab"]))
        return "stale"
    lengths = np.asarray(item["lengths"], np.int32)
    cell, generation = view.cell(int(item["offset"])), int(item["generation"])
    chunk = Chunk(
        view, cell, generation, lengths, int(item["num_finals"]), int(lengths.max(initial=0)),
        item.get("late", {}),
    )  # fmt: skip
    if "digest" in item and digest(view.content(cell), item["digest_kind"]) != item["digest"]:
        return "stale" if chunk.stale else "corrupt"
    return chunk


def _copy(chunks: list[Chunk], buffers: Buffers) -> Columns:
    row = final = 0
    for chunk in chunks:
        chunk.rows = slice(row, row + chunk.view.layout.num_rows)
        chunk.finals = slice(final, final + chunk.num_finals)
        row, final = chunk.rows.stop, chunk.finals.stop
    length = max(chunk.length for chunk in chunks)
    batch: Columns = {"lengths": np.concatenate([chunk.lengths for chunk in chunks])}
    timed = []
    for column in chunks[0].view.layout.columns:
        name = column.name
        if name.startswith("obs/"):
            batch[name] = _observations(name, chunks, length, row, buffers)
        elif name.startswith("final_obs/"):
            batch[name] = _final_observations(name, chunks, final, buffers)
        elif name.startswith("final_") and name != "final_slot":
            batch[name] = np.concatenate([c.column(name)[: c.num_finals] for c in chunks])
        elif name not in _PER_ROW:
            timed.append(name)
            target = batch[name] = buffers.get(name, (length, row, *column.shape[2:]), np.dtype(column.dtype))
            for chunk in chunks:
                target[: chunk.length, chunk.rows] = chunk.column(name)[: chunk.length]
        elif name != "lengths":
            batch[name] = np.concatenate([c.column(name) for c in chunks])
    for name in chunks[0].late:
        timed.append(f"late/{name}")
        target = batch[f"late/{name}"] = buffers.get(f"late/{name}", (length, row), np.dtype(np.float32))
        for chunk in chunks:
            target[: chunk.length, chunk.rows] = chunk.late[name]
    _finish(batch, timed, chunks, length)
    return batch


def _finish(batch: Columns, timed: list[str], chunks: list[Chunk], length: int) -> None:
    """Rebase final slots, blank what is beyond each row's length, add the columns made here."""
    inside = np.arange(length)[:, None] < batch["lengths"]
    for chunk in chunks:
        slot = batch["final_slot"][:, chunk.rows]
        slot[(slot < 0) | (slot >= chunk.num_finals)] = -1
        slot[slot >= 0] += chunk.finals.start
    if not inside.all():
        for name in timed:
            batch[name][~inside] = -1 if name in ("final_slot", "episode") else 0
    batch["valid"] = inside & ~batch["interrupted"]
    batch["start"] = inside & (batch["step"] == 0)
    if "carry" in batch:
        batch["state"] = np.ascontiguousarray(batch.pop("carry")).view(np.float32)


def _observations(name: str, chunks: list[Chunk], length: int, num_rows: int, buffers: Buffers) -> np.ndarray:
    """[T+1, N, ...], or [T+1, N, K, ...] with the frames of each row's running episode."""
    head, depth = chunks[0].column(name), chunks[0].view.layout.num_history + 1
    inner = head.shape[2:] if depth == 1 else (depth, *head.shape[2:])
    target = buffers.get(name, (length + 1, num_rows, *inner), head.dtype)
    for chunk in chunks:
        end, frames = chunk.length + 1, chunk.column(name)
        part = target[:, chunk.rows]
        if depth == 1:
            part[:end] = frames[:end]
        else:
            _stack(part[:end], frames, _since_start(chunk, depth), depth)
        if end <= length or (chunk.lengths != chunk.length).any():
            part[np.arange(length + 1)[:, None] > chunk.lengths] = 0
    return target


def _since_start(chunk: Chunk, depth: int) -> np.ndarray:
    """int [T+1, N]: decisions since the first of the running episode, counted up to K-1 at least.

    Not ``step``, which counts executed environment steps. An episode that began before the chunk is
    far enough away: the frames stored before the first are already those of that episode.
    """
    end, rows = chunk.length, np.arange(chunk.view.layout.num_rows)
    start = np.zeros((end + 1, chunk.view.layout.num_rows), bool)
    start[:end] = chunk.column("step")[:end] == 0
    start[chunk.lengths, rows] = chunk.column("last_step") == 0
    time = np.arange(end + 1)[:, None]
    return time - np.maximum.accumulate(np.where(start, time, 1 - depth), axis=0)


def _stack(target: np.ndarray, frames: np.ndarray, since: np.ndarray, depth: int) -> None:
    """Write [T, N, K, ...] into ``target`` from ``frames`` [K-1+T, N, ...].

    ``since`` [T, N]: a frame before the episode's first is the first. Most rows are far from a start,
    so all are copied by slices and those that are near one are then written again.
    """
    for place in range(depth):
        target[:, :, place] = frames[place : place + len(target)]
    time, row = (since < depth - 1).nonzero()
    begun = since[time, row]
    for place in range(depth - 1):
        age = np.minimum(depth - 1 - place, begun)
        target[time, row, place] = frames[time + depth - 1 - age, row]


def _final_observations(name: str, chunks: list[Chunk], num_finals: int, buffers: Buffers) -> np.ndarray:
    """[M, ...], or [M, K, ...]: the final frame behind the K-1 frames before it."""
    head, depth = chunks[0].column(name), chunks[0].view.layout.num_history + 1
    inner = head.shape[1:] if depth == 1 else (depth, *head.shape[1:])
    target = buffers.get(name, (num_finals, *inner), head.dtype)
    for chunk in chunks:
        part, last = target[chunk.finals], chunk.column(name)[: chunk.num_finals]
        if depth == 1:
            part[:] = last
            continue
        part[:, -1] = last
        slot = chunk.column("final_slot")[: chunk.length]
        inside = np.arange(chunk.length)[:, None] < chunk.lengths
        time, row = (inside & (slot >= 0) & (slot < chunk.num_finals)).nonzero()
        begun = _since_start(chunk, depth)[time, row]
        frames = chunk.column("obs/" + name.removeprefix("final_obs/"))
        for place in range(depth - 1):
            age = np.minimum(depth - 2 - place, begun)
            part[slot[time, row], place] = frames[time + depth - 1 - age, row]
    return target
