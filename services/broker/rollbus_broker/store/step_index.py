"""Draws over all steps of many chunks, uniform or by priority, vectorised.

Chunks come at the end and go at the front. Per (chunk, row) one entry keeps the running total of
steps; a draw is one `searchsorted` over these totals.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rollbus_broker.store.priorities import Priorities
from rollbus_broker.store.records import Chunk


class Draw(NamedTuple):
    """``chunk``, ``time`` and ``row`` int32 [draws]; ``chunk`` counts in ``slab``, ``offset``
    (int64 [C]) and ``generation`` (uint64 [C]), which name only the chunks that are used."""

    chunk: np.ndarray
    time: np.ndarray
    row: np.ndarray
    slab: np.ndarray
    offset: np.ndarray
    generation: np.ndarray
    #: int64 [draws]: numbers of the steps, and the probability of each, where they go by priority.
    step: np.ndarray | None = None
    probability: np.ndarray | None = None
    #: Late columns of the steps, float32 [draws] each.
    late: dict[str, np.ndarray] | None = None
    #: int32 [C]: the chunk that followed each one in its slice, -1: none that is named.
    following: np.ndarray | None = None


class _Tail:
    """An array that grows at the end and is dropped from the front, in amortised constant time."""

    def __init__(self, dtype: str, width: int = 0) -> None:
        self._data = np.zeros((64, width) if width else 64, dtype)
        self._start = self._end = 0

    def append(self, values: np.ndarray) -> None:
        count = len(values)
        if self._end + count > len(self._data):
            live = self._data[self._start : self._end]
            room = max(64, 2 * (len(live) + count))
            grown = np.zeros((room, *self._data.shape[1:]), self._data.dtype)
            grown[: len(live)] = live
            self._data, self._start, self._end = grown, 0, len(live)
        self._data[self._end : self._end + count] = values
        self._end += count

    def drop(self, count: int) -> None:
        self._start += count

    @property
    def view(self) -> np.ndarray:
        return self._data[self._start : self._end]


class StepIndex:
    """All steps of a replay table. ``priority_exponent`` 0: draws are uniform.

    Chunks must have all ``late_columns``; a draw gives them.
    """

    def __init__(self, priority_exponent: float = 0.0, late_columns: tuple[str, ...] = ()) -> None:
        self.late_columns = late_columns
        # Late columns of each step, side by side.
        self._late = _Tail("float32", len(late_columns))
        self.priorities = Priorities(priority_exponent) if priority_exponent else None
        # Steps up to and including each entry, counted since the table began.
        self._totals = _Tail("int64")
        # Chunk, counted since the table began, and row of each entry.
        self._entries = _Tail("int64", 2)
        # slab, offset, generation of each chunk.
        self._cells = _Tail("int64", 3)
        # Of each chunk: number of the one that followed in its slice (-1: none yet), its shortest row.
        self._links = _Tail("int64", 2)
        # Slice -> number and sequence of its newest chunk.
        self._newest: dict[str, tuple[int, int]] = {}
        self._first_chunk = 0
        self._dropped_steps = self._all_steps = 0

    def __len__(self) -> int:
        """Number of steps."""
        return self._all_steps - self._dropped_steps

    def append(self, chunk: Chunk) -> None:
        lengths = chunk.lengths.astype(np.int64)
        self._totals.append(self._all_steps + np.cumsum(lengths))
        number = self._first_chunk + len(self._cells.view)
        entries = np.empty((len(lengths), 2), np.int64)
        entries[:, 0], entries[:, 1] = number, np.arange(len(lengths))
        self._entries.append(entries)
        self._cells.append(np.array([chunk.cell], np.int64))
        self._all_steps += chunk.steps
        self._link(number, chunk)
        if self.late_columns:
            columns = np.stack([chunk.late[name].T for name in self.late_columns], -1)  # [N, T, columns]
            self._late.append(columns[np.arange(columns.shape[1]) < lengths[:, None]])
        if self.priorities is not None:
            self.priorities.append(chunk.steps)

    def _link(self, number: int, chunk: Chunk) -> None:
        """Chunk ``number`` follows the newest one of its slice, unless it waited so long that it is older."""
        taken = chunk.lengths[chunk.lengths > 0]
        self._links.append(np.array([[-1, taken.min() if len(taken) else 0]], np.int64))
        before, sequence = self._newest.get(chunk.slice, (-1, -1))
        if chunk.sequence > sequence:
            if before >= self._first_chunk:
                self._links.view[before - self._first_chunk, 0] = number
            self._newest[chunk.slice] = (number, chunk.sequence)

    def drop_first(self, chunk: Chunk) -> None:
        """The oldest chunk goes; ``chunk`` is it."""
        self._totals.drop(len(chunk.lengths))
        self._entries.drop(len(chunk.lengths))
        self._cells.drop(1)
        self._links.drop(1)
        self._first_chunk += 1
        self._dropped_steps += chunk.steps
        if self.late_columns:
            self._late.drop(chunk.steps)
        if self.priorities is not None:
            self.priorities.drop(chunk.steps)

    def draw(self, num: int, seed: int, ahead: int = 0) -> Draw:
        """``num`` steps; a function of ``seed``, the content and its priorities.

        ``ahead``: the chunks that hold so many decisions after each are named, too.
        """
        if self.priorities is None:
            picks = np.random.default_rng(seed).integers(self._dropped_steps, self._all_steps, num)
            return self._places(picks, ahead)
        picks, probability = self.priorities.draw(num, seed)
        return self._places(picks, ahead)._replace(step=picks, probability=probability)

    def _places(self, picks: np.ndarray, ahead: int) -> Draw:
        """Where the steps with numbers ``picks`` are."""
        num = len(picks)
        totals = self._totals.view
        # Sorted needles walk the totals in order: several times faster than random access.
        order = np.argsort(picks)
        place = np.empty(num, np.int64)
        place[order] = np.searchsorted(totals, picks[order], side="right")
        entries = self._entries.view[place]
        before = np.where(place > 0, totals[place - 1], self._dropped_steps)
        chunk = entries[:, 0] - self._first_chunk
        is_used = np.zeros(len(self._cells.view), bool)
        is_used[chunk] = True
        following = None
        if ahead:
            self._reach(is_used, ahead)
        used = np.flatnonzero(is_used)
        compact = np.empty(len(is_used), np.int32)
        compact[used] = np.arange(len(used), dtype=np.int32)
        if ahead:
            follows = self._links.view[used, 0] - self._first_chunk
            there = (follows >= 0) & is_used[follows]
            following = np.where(there, compact[follows], -1).astype(np.int32)
        cells = self._cells.view[used]
        return Draw(
            compact[chunk],
            (picks - before).astype(np.int32),
            entries[:, 1].astype(np.int32),
            cells[:, 0],
            cells[:, 1],
            cells[:, 2].astype(np.uint64),
            late=self._late_of(picks) if self.late_columns else None,
            following=following,
        )

    def _reach(self, is_used: np.ndarray, ahead: int) -> None:
        """Mark the chunks that hold ``ahead`` decisions after those that are marked."""
        next_of, shortest = self._links.view[:, 0] - self._first_chunk, self._links.view[:, 1]
        # Decisions that are still wanted after each chunk.
        wanted = np.zeros(len(is_used), np.int64)
        front = np.flatnonzero(is_used)
        wanted[front] = ahead
        while front.size:
            front = front[(wanted[front] > 0) & (next_of[front] >= 0)]
            after = next_of[front]
            left = np.maximum(wanted[front] - shortest[after], 0)
            more = ~is_used[after] | (left > wanted[after])
            front, left = after[more], left[more]
            is_used[front] = True
            wanted[front] = left

    def _late_of(self, picks: np.ndarray) -> dict[str, np.ndarray]:
        found = self._late.view[picks - self._dropped_steps]
        return {name: found[:, place] for place, name in enumerate(self.late_columns)}
