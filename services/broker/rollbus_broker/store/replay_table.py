"""Off-policy: chunks stay until there is no room; steps are drawn uniformly or by priority.

The limiter holds both sides to one ratio: update u needs ``target(u)`` steps committed, and tickets
are granted while no more than ``target(u + 1)`` are begun. Where ``steps_per_update`` is 0 no ratio is kept:
the table is filled as fast as its source can.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from rollbus_broker.store.records import Chunk, Grant, TicketInfo
from rollbus_broker.store.step_index import Draw, StepIndex
from rollbus_broker.store.tables import Table
from rollbus_core.feed import TableConfig
from rollbus_core.version import Version

#: Part of the chunks that is given up at once, so that a freed cell rests before it is used again
#: and a reader in mid-gather seldom meets a new generation.
EVICT_PART = 64


class ReplayTable(Table):
    """Settings: min_steps, steps_per_update, random_steps, max_steps."""

    def __init__(self, name: str, config: TableConfig) -> None:
        super().__init__(name, config)
        self._chunks: deque[Chunk] = deque()
        self._index = StepIndex(config.priority_exponent, config.late_columns)
        self._begun = 0
        #: (updates, steps) where the ratio is counted from.
        self.anchor = (0, config.min_steps)

    # --- questions ---

    def target(self, updates: int) -> int:
        """Steps that must have been inserted before update number ``updates``."""
        since, steps = self.anchor
        return steps + (updates - since) * self.config.steps_per_update

    def place(self, slice: str, num_rows: int, asked: int) -> Grant | None:
        if self.full:
            return None
        mode = "random" if self.total_steps + self._begun < self.config.random_steps else "sample"
        return Grant(asked, 0, Version(), mode)

    @property
    def full(self) -> bool:
        begun = self.total_steps + self._begun
        return bool(self.config.steps_per_update) and begun > self.target(self.updates + 1)

    def can_draw(self) -> bool:
        """Whether the next update may draw."""
        return len(self._index) > 0 and self.total_steps >= self.target(self.updates)

    def draw(self, num: int, seed: int, ahead: int = 0) -> Draw:
        """``num`` steps, and the chunks that hold the ``ahead`` decisions after each."""
        return self._index.draw(num, seed, ahead)

    def chunks(self) -> Iterator[Chunk]:
        return itertools.chain(self._chunks, self.unannotated.values())

    def num_chunks(self) -> int:
        return len(self._chunks) + len(self.unannotated)

    def live_steps(self) -> int:
        return len(self._index)

    @property
    def outstanding(self) -> int:
        return self._begun

    # --- events ---

    def open(self, version: Version, applied: int) -> tuple[list[Chunk], list[TicketInfo]]:
        if not self.total_steps:
            self.anchor = (version.number, self.config.min_steps)
        self.updates = version.number
        self.delivered, self.doubtful = max(self.delivered, applied, self.floor), False
        self._fork(version)
        if self._index.late_columns != self.config.late_columns:
            self._index_anew()
        return [], []

    def begin(self, ticket: TicketInfo) -> None:
        super().begin(ticket)
        self._begun += ticket.steps

    def end(self, number: int, reason: str = "") -> TicketInfo | None:
        ticket = super().end(number, reason)
        if ticket is not None:
            self._begun -= ticket.steps
        return ticket

    def commit(self, chunk: Chunk) -> list[Chunk]:
        self._begun -= self.tickets.pop(chunk.ticket).steps
        self.sequence = max(self.sequence, chunk.sequence)
        if self._lacks(chunk):
            self._wait(chunk)
            return []
        return self._insert(chunk)

    def _insert(self, chunk: Chunk) -> list[Chunk]:
        """From here on it may be drawn; chunks that it pushes out."""
        self.total_steps += chunk.steps
        self._add(chunk)
        out = []
        limit = self.config.max_steps
        while limit and len(self._index) - self._chunks[0].steps >= limit:
            out.append(self._drop_first())
        return out

    def deliver(self, number: int, sample: tuple[str, int]) -> None:
        """Event: draw ``number`` was answered."""
        self.delivered, self.last_sample = number, sample

    def consumed(self, sequence: int, version: Version, updates: int) -> list[Chunk]:
        if version.lineage == self.version.lineage:
            self.version = max(self.version, version)
            self.updates = max(self.updates, updates)
        return []

    def prioritise(self, steps: np.ndarray, priorities: np.ndarray) -> None:
        """New priorities of drawn ``steps``. They are not logged: after a restart all are alike."""
        if self._index.priorities is not None:
            self._index.priorities.update(steps, priorities)

    def evict(self) -> list[Chunk]:
        count = min(len(self._chunks), max(1, len(self._chunks) // EVICT_PART))
        return [self._drop_first() for _ in range(count)]

    def lose(self, lost: Callable[[Chunk], bool]) -> list[Chunk]:
        gone = [chunk for chunk in self._chunks if lost(chunk)]
        if gone:
            self._chunks = deque(chunk for chunk in self._chunks if not lost(chunk))
            self._index_anew()
        for chunk in [chunk for chunk in self.unannotated.values() if lost(chunk)]:
            del self.unannotated[chunk.sequence]
            self._withdraw(chunk)
            gone.append(chunk)
        self._drop(gone, "memory")
        if not self._chunks and gone:
            # Nothing is left to learn from: the warm-up begins anew.
            self.anchor = (self.updates, self.total_steps + self.config.min_steps)
        return gone

    def _wait(self, chunk: Chunk) -> None:
        """It cannot be drawn before its late columns are there, and counts as begun."""
        self.unannotated[chunk.sequence] = chunk
        self._begun += chunk.steps

    def _withdraw(self, chunk: Chunk) -> None:
        self._begun -= chunk.steps

    def _go_on(self, sequence: int) -> list[Chunk]:
        chunk = self.unannotated.pop(sequence)
        self._withdraw(chunk)
        return self._insert(chunk)

    def _index_anew(self) -> None:
        """Of the chunks that are there; late columns that they were never asked for are 0."""
        chunks, self._chunks = self._chunks, deque()
        self._index = StepIndex(self.config.priority_exponent, self.config.late_columns)
        for chunk in chunks:
            self._fill(chunk)
            self._add(chunk)

    def _add(self, chunk: Chunk) -> None:
        self._chunks.append(chunk)
        self._index.append(chunk)

    def _drop_first(self) -> Chunk:
        chunk = self._chunks.popleft()
        self._index.drop_first(chunk)
        self.on_drop(chunk, "evicted", False)
        return chunk

    # --- the whole state ---

    def dump(self) -> dict[str, Any]:
        return super().dump() | {"anchor": list(self.anchor)}

    def load(self, data: dict[str, Any], chunks: Sequence[tuple[int, Chunk]]) -> None:
        super().load(data, chunks)
        self.anchor = (data["anchor"][0], data["anchor"][1])
        for _, chunk in chunks:
            if self._lacks(chunk):
                self._wait(chunk)
            else:
                self._add(chunk)

    def dump_chunks(self) -> Iterable[tuple[int, Chunk]]:
        return ((0, chunk) for chunk in self.chunks())
