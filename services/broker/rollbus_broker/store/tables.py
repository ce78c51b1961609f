"""What all tables have in common: tickets, lineages, counters. Pure: no clock, socket or file.

A table changes only through the methods marked "event"; the store logs each event and replays the
log through the same methods after a restart, so that both sides of a restart are the same code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from rollbus_broker.store.records import Chunk, Grant, TicketInfo
from rollbus_core.feed import TableConfig
from rollbus_core.version import Version


class Table:
    """Base of `QueueTable` and `ReplayTable`. ``steps`` are decisions."""

    #: Whether a chunk is freed only when its reader is done with it.
    freed_unread = False

    def __init__(self, name: str, config: TableConfig) -> None:
        self.name, self.config = name, config
        self.version = Version()
        #: Lineage -> number at which it began.
        self.forks: dict[int, int] = {}
        self.tickets: dict[int, TicketInfo] = {}
        self.total_steps = 0
        self.sequence = 0
        #: Number of the last delivery.
        self.delivered = 0
        #: (sender, message id) of the request that got the last delivery.
        self.last_sample: tuple[str, int] = ("", 0)
        self.updates = 0
        #: Records of the log were lost: nobody but a learner knows what was applied, and it must open the
        #: table anew before anything is delivered.
        self.doubtful = False
        #: Largest number that the log knew of when it was found to be damaged.
        self.last_known = 0
        #: The learner of a deterministic run died: nothing more is collected with its versions, because the
        #: environments go on from where the next learner's checkpoint left them.
        self.deserted = False
        #: Chunks and deliveries are numbered above this.
        self.floor = 0
        self.dropped: Counter[str] = Counter()
        #: Committed chunks that wait for late columns, by sequence, in order.
        self.unannotated: dict[int, Chunk] = {}
        #: Told of every chunk that is given up after it was acknowledged, and why.
        self.on_drop: Callable[[Chunk, str, bool], None] = lambda chunk, reason, consumed: None

    # --- questions ---

    def alive(self, version: Version) -> bool:
        """Whether ``version`` is an ancestor of, or in, the current lineage."""
        return version.lineage <= self.version.lineage and all(
            version.number <= number
            for lineage, number in self.forks.items()
            if version.lineage < lineage <= self.version.lineage
        )

    def place(self, slice: str, num_rows: int, asked: int) -> Grant | None:
        """What a request may begin now, or None if it must wait. Raises `ConfigError` if never."""
        raise NotImplementedError

    @property
    def full(self) -> bool:
        """Whether nobody may begin anything now: `place` has None for every request."""
        return False

    def refusal(self, ticket: TicketInfo, oldest: Version, newest: Version) -> str:
        """Why a commit is dropped, or ""."""
        return ""

    def chunks(self) -> Iterator[Chunk]:
        """All chunks whose cells are in use."""
        raise NotImplementedError

    @property
    def outstanding(self) -> int:
        """Steps begun and not consumed."""
        raise NotImplementedError

    def live_steps(self) -> int:
        """Steps of all chunks kept."""
        return sum(chunk.steps for chunk in self.chunks())

    def num_chunks(self) -> int:
        return sum(1 for _ in self.chunks())

    # --- events ---

    def open(self, version: Version, applied: int) -> tuple[list[Chunk], list[TicketInfo]]:
        """Event: a learner begins at ``version``; (chunks dropped, tickets void)."""
        raise NotImplementedError

    def doubt(self, floor: int, damaged: int) -> None:
        """Event: records were lost, those of ``damaged`` acknowledged chunks among them."""
        self.doubtful, self.floor, self.last_known = True, floor, self.sequence
        self.sequence = max(self.sequence, floor)
        if damaged:
            self.dropped["damaged"] += damaged

    def begin(self, ticket: TicketInfo) -> None:
        """Event: a ticket was granted."""
        self.tickets[ticket.number] = ticket

    def end(self, number: int, reason: str = "") -> TicketInfo | None:
        """Event: a ticket returns without a chunk; ``reason`` counts one as dropped."""
        ticket = self.tickets.pop(number, None)
        if ticket is not None and reason:
            self.dropped[reason] += 1
        return ticket

    def commit(self, chunk: Chunk) -> list[Chunk]:
        """Event: the chunk of an open ticket is complete; chunks that it pushes out."""
        raise NotImplementedError

    def annotate(self, sequence: int, column: str, values: bytes) -> list[Chunk]:
        """Event: a late column of a chunk that waits for it; chunks that this one pushes out."""
        chunk = self.unannotated[sequence]
        chunk.attach(column, values)
        return [] if self._lacks(chunk) else self._go_on(sequence)

    def settle(self, sequence: int, *, drop: bool) -> list[Chunk]:
        """Event: a chunk waits no longer: dropped, or with zeros; chunks given up."""
        chunk = self.unannotated[sequence]
        if drop:
            del self.unannotated[sequence]
            self._withdraw(chunk)
            self._drop([chunk], "unannotated")
            return [chunk]
        self._fill(chunk)
        return self._go_on(sequence)

    def _lacks(self, chunk: Chunk) -> list[str]:
        """Late columns that have not come."""
        return [name for name in self.config.late_columns if name not in chunk.late]

    def _fill(self, chunk: Chunk) -> None:
        for name in self._lacks(chunk):
            chunk.late[name] = np.zeros(chunk.late_shape, np.float32)

    def _go_on(self, sequence: int) -> list[Chunk]:
        """A chunk has all that it waited for; chunks that it pushes out."""
        self.unannotated.pop(sequence)
        return []

    def _withdraw(self, chunk: Chunk) -> None:
        """Take out a chunk that waited for late columns."""
        raise NotImplementedError

    def consumed(self, sequence: int, version: Version, updates: int) -> list[Chunk]:
        """Event: an update is done; chunks that are not kept any longer."""
        raise NotImplementedError

    def durable(self, sequence: int) -> list[Chunk]:
        """Event: a checkpoint holds deliveries up to ``sequence``; chunks freed by that."""
        return []

    def evict(self) -> list[Chunk]:
        """Event: make room; the chunks given up, none if there is nothing to give."""
        raise NotImplementedError

    def lose(self, lost: Callable[[Chunk], bool]) -> list[Chunk]:
        """Event: the bytes of some chunks are gone; those chunks, counted as ``memory``."""
        raise NotImplementedError

    def _drop(self, chunks: Iterable[Chunk], reason: str, *, consumed: bool = False) -> None:
        for chunk in chunks:
            self.dropped[reason] += 1
            self.on_drop(chunk, reason, consumed)

    def _fork(self, version: Version) -> None:
        if version.lineage not in self.forks:
            self.forks[version.lineage] = version.number
        self.version = version

    # --- the whole state, for a compact log ---

    def dump(self) -> dict[str, Any]:
        """State without chunks and tickets."""
        return {
            "settings": self.config.model_dump(), "version": list(self.version),
            "forks": list(self.forks.items()), "total_steps": self.total_steps,
            "sequence": self.sequence, "delivered": self.delivered,
            "last_sample": list(self.last_sample), "updates": self.updates,
            "dropped": dict(self.dropped), "doubtful": self.doubtful, "floor": self.floor,
        }  # fmt: skip

    def load(self, data: dict[str, Any], chunks: Sequence[tuple[int, Chunk]]) -> None:
        """The inverse of `dump` and `dump_chunks`."""
        self.version = Version.of(data["version"])
        self.forks = {int(k): int(v) for k, v in data["forks"]}
        self.last_sample = (data["last_sample"][0], data["last_sample"][1])
        self.dropped = Counter(data["dropped"])
        for key in ("total_steps", "sequence", "delivered", "updates"):
            setattr(self, key, data[key])
        self.doubtful, self.floor = data.get("doubtful", False), data.get("floor", 0)

    def dump_chunks(self) -> Iterable[tuple[int, Chunk]]:
        """(batch, chunk) of all chunks in order; batch is 0 in replay tables."""
        raise NotImplementedError
