"""On-policy: each chunk is delivered once, in numbered batches, within a bound on the lag.

The *size* of a chunk is its steps, or its rows where they are whole episodes (`TableConfig.batch_rows`).
Batch b is learned by the version that b - 1 made. At any time the batches ``consumed + 1`` to
``consumed + 1 + max_lag`` may be begun, so at most max_lag + 1 batches are outstanding
and no chunk is older than max_lag updates when it is learned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollbus_broker.store.records import Chunk, Grant, TicketInfo
from rollbus_broker.store.tables import Table
from rollbus_core.feed import TableConfig
from rollbus_core.version import Version
from rollbus_wire.errors import ConfigError

#: Consumed deliveries kept for a resume although no checkpoint has asked for it yet.
KEEP_DELIVERIES = 32


@dataclass
class _Batch:
    chunks: list[Chunk] = field(default_factory=list)
    #: Slices that have a ticket or a chunk in it.
    slices: list[str] = field(default_factory=list)
    tickets: int = 0
    ticket_size: int = 0
    chunk_size: int = 0
    #: Size granted for the chunks that came; more than ``chunk_size`` where chunks were cut.
    granted_size: int = 0

    @property
    def begun(self) -> int:
        return self.ticket_size + self.chunk_size

    def add(self, chunk: Chunk, size: int, granted: int) -> None:
        self.chunks.append(chunk)
        self.slices.append(chunk.slice)
        self.chunk_size += size
        self.granted_size += granted


class QueueTable(Table):
    """``waiting`` below are the rows of the requests that wait for a ticket."""

    freed_unread = True

    def __init__(self, name: str, config: TableConfig) -> None:
        super().__init__(name, config)
        #: Not yet delivered.
        self.batches: dict[int, _Batch] = {}
        #: Delivered and neither durable nor evicted.
        self.kept: dict[int, list[Chunk]] = {}
        #: Evicted before a checkpoint held them: delivery -> chunks.
        self.evicted: dict[int, int] = {}
        self.consumed_up_to = 0
        self.durable_up_to = 0
        self.min_rows = 0
        #: Size of a whole batch.
        self.batch_size = config.batch_rows or config.batch_steps

    # --- questions ---

    def place(self, slice: str, num_rows: int, asked: int) -> Grant | None:
        config = self.config
        if num_rows > self.batch_size:
            raise ConfigError(
                f"slice {slice!r} has {num_rows} rows, but a batch of table {self.name!r} has "
                f"{self.batch_size} {'rows' if config.batch_rows else 'steps'}; use more slices, fewer envs, "
                "or longer batches"
            )
        for number in range(self.delivered + 1, self.consumed_up_to + config.max_lag + 2):
            batch = self.batches.get(number) or _Batch()
            if config.one_chunk_per_slice and slice in batch.slices:
                continue
            fit = self._room(batch) // num_rows
            num_decisions = min(asked, fit if not config.batch_rows else asked * fit)
            if num_decisions > 0:
                return Grant(num_decisions, number, self._min_version(number))
        return None

    @property
    def full(self) -> bool:
        for number in range(self.delivered + 1, self.consumed_up_to + self.config.max_lag + 2):
            batch = self.batches.get(number)
            if batch is None or self._room(batch) > 0:
                return False
        return True

    def refusal(self, ticket: TicketInfo, oldest: Version, newest: Version) -> str:
        if not (self.alive(oldest) and self.alive(newest)):
            return "lineage"
        return "lag" if oldest < ticket.min_version else ""

    def complete(self, waiting: Sequence[int]) -> bool:
        """Whether the next batch can be delivered.

        Its rest may be smaller than any request; with nothing open it is complete without it.
        """
        batch = self.batches.get(self.delivered + 1)
        if batch is None or not batch.chunks:
            return False
        if self.unannotated and any(chunk.sequence in self.unannotated for chunk in batch.chunks):
            return False
        if batch.chunk_size >= self.batch_size:
            return True
        if batch.tickets:
            return False
        room = self._room(batch)
        if room < max(1, self.min_rows):
            return True
        fits = any(num_rows <= room for num_rows in waiting)
        return bool(waiting) and not fits and not self.config.one_chunk_per_slice

    def delivery(self, number: int) -> list[Chunk] | None:
        """The chunks of a delivery that is still kept."""
        return self.kept.get(number)

    def chunks(self) -> Iterator[Chunk]:
        return (chunk for _, chunk in self.dump_chunks())

    @property
    def outstanding(self) -> int:
        return sum(batch.begun for batch in self.batches.values()) + sum(
            self._size(chunk)
            for number, chunks in self.kept.items()
            if number > self.consumed_up_to
            for chunk in chunks
        )

    def _size(self, item: Chunk | TicketInfo) -> int:
        return item.num_rows if self.config.batch_rows else item.steps

    def _room(self, batch: _Batch) -> int:
        if self.config.one_chunk_per_slice:
            return self.batch_size - batch.granted_size - batch.ticket_size
        return self.batch_size - batch.begun

    def _min_version(self, number: int) -> Version:
        updates_ahead = number - self.consumed_up_to - 1
        oldest = self.version.number + updates_ahead - self.config.max_lag
        start = self.forks.get(self.version.lineage, 0)
        return Version(self.version.lineage, max(start, oldest))

    # --- events ---

    def open(self, version: Version, applied: int) -> tuple[list[Chunk], list[TicketInfo]]:
        self.deserted = False
        known = version.lineage in self.forks
        same = known and version == self.version
        if same and applied == self.consumed_up_to == self.delivered and not self.doubtful:
            return [], []
        pending = [chunk for number, chunk in self.dump_chunks() if number > applied]
        freed = [chunk for number, chunk in self.dump_chunks() if number <= applied]
        missing = sum(count for number, count in self.evicted.items() if number > applied)
        kept: dict[int, list[Chunk]] = {}
        if self.doubtful:
            kept, freed = self._applied_unsaved(applied), []
        if missing:
            self.dropped["full"] += missing
        void = list(self.tickets.values())
        last = max([self.delivered, applied, self.floor, *self.batches])
        self.tickets, self.batches, self.kept, self.evicted = {}, {}, kept, {}
        self.delivered = self.consumed_up_to = last
        self.durable_up_to = min(kept, default=last + 1) - 1
        self.doubtful = False
        self._fork(version)
        self.unannotated = {}
        for chunk in pending:
            # A deterministic run collects anew from where its checkpoint left the environments.
            anew = self.config.one_chunk_per_slice and not known
            reason = "lineage" if anew else self._queue_again(chunk)
            if reason:
                self._drop([chunk], reason)
                freed.append(chunk)
        if void:
            self.dropped["expired" if known else "lineage"] += len(void)
        return freed, void

    def begin(self, ticket: TicketInfo) -> None:
        super().begin(ticket)
        self.min_rows = min(self.min_rows or ticket.num_rows, ticket.num_rows)
        batch = self.batches.setdefault(ticket.batch, _Batch())
        batch.tickets += 1
        batch.ticket_size += self._size(ticket)
        batch.slices.append(ticket.slice)

    def end(self, number: int, reason: str = "") -> TicketInfo | None:
        ticket = super().end(number, reason)
        if ticket is not None:
            self._leave(ticket)
        return ticket

    def commit(self, chunk: Chunk) -> list[Chunk]:
        ticket = self.tickets.pop(chunk.ticket)
        batch = self._leave(ticket)
        batch.add(chunk, self._size(chunk), self._size(ticket))
        self._wait_for_late(chunk)
        self.sequence = max(self.sequence, chunk.sequence)
        self.total_steps += chunk.steps
        return []

    def deliver(self, number: int, sample: tuple[str, int]) -> list[Chunk]:
        """Event: batch ``number``, the next one, goes to the learner."""
        chunks = self.batches.pop(number).chunks
        self.kept[number] = chunks
        self.delivered, self.last_sample = number, sample
        return chunks

    def consumed(self, sequence: int, version: Version, updates: int) -> list[Chunk]:
        if version.lineage != self.version.lineage:
            return []
        self.consumed_up_to = max(self.consumed_up_to, min(sequence, self.delivered))
        self.version = max(self.version, version)
        self.updates = updates
        # A resume from the last durable checkpoint can only use the lag + 1 deliveries after it.
        protected = self.durable_up_to + self.config.max_lag + 1
        freed = []
        for number in list(self.kept):
            if number > self.consumed_up_to - KEEP_DELIVERIES:
                break
            if number > protected:
                freed += self._evict(number)
        return freed

    def durable(self, sequence: int) -> list[Chunk]:
        self.durable_up_to = max(self.durable_up_to, min(sequence, self.delivered))
        self.evicted = {k: v for k, v in self.evicted.items() if k > sequence}
        done = [number for number in self.kept if number <= sequence]
        return [chunk for number in done for chunk in self.kept.pop(number)]

    def evict(self) -> list[Chunk]:
        oldest = next(iter(self.kept), None)
        if oldest is None or oldest > self.consumed_up_to:
            return []
        return self._evict(oldest)

    def lose(self, lost: Callable[[Chunk], bool]) -> list[Chunk]:
        gone = [c for batch in self.batches.values() for c in batch.chunks if lost(c)]
        for chunk in gone:
            self.unannotated.pop(chunk.sequence, None)
            self._withdraw(chunk)
        self._drop(gone, "memory")
        for number, chunks in self.kept.items():
            delivered = [c for c in chunks if lost(c)]
            self._drop(delivered, "memory", consumed=number <= self.consumed_up_to)
            self.kept[number] = [c for c in chunks if not lost(c)]
            gone += delivered
        return gone

    def _applied_unsaved(self, applied: int) -> dict[int, list[Chunk]]:
        """Delivery -> chunks up to ``applied``, which a resume may ask for.

        A chunk whose batch was numbered anew by a lost record may be among them that was never delivered.
        """
        found: dict[int, list[Chunk]] = {}
        for number, chunk in self.dump_chunks():
            if number <= applied:
                found.setdefault(number, []).append(chunk)
                self.on_drop(chunk, "damaged", False)
        return dict(sorted(found.items()))

    def _wait_for_late(self, chunk: Chunk) -> None:
        if self._lacks(chunk):
            self.unannotated[chunk.sequence] = chunk

    def _withdraw(self, chunk: Chunk) -> None:
        batch = next(b for b in self.batches.values() if any(c is chunk for c in b.chunks))
        batch.chunks = [c for c in batch.chunks if c is not chunk]
        batch.slices.remove(chunk.slice)
        batch.chunk_size -= self._size(chunk)
        batch.granted_size -= self._size(chunk)

    def _leave(self, ticket: TicketInfo) -> _Batch:
        batch = self.batches[ticket.batch]
        batch.tickets -= 1
        batch.ticket_size -= self._size(ticket)
        batch.slices.remove(ticket.slice)
        return batch

    def _evict(self, number: int) -> list[Chunk]:
        chunks = self.kept.pop(number)
        self.evicted[number] = len(chunks)
        for chunk in chunks:
            self.on_drop(chunk, "full", True)  # counted if a resume asks for it
        return chunks

    def _queue_again(self, chunk: Chunk) -> str:
        """Put ``chunk`` into the first batch that takes it; else the reason to drop it."""
        if not (self.alive(chunk.oldest) and self.alive(chunk.newest)):
            return "lineage"
        for ahead in range(self.config.max_lag + 1):
            batch = self.batches.setdefault(self.delivered + 1 + ahead, _Batch())
            if batch.chunk_size + self._size(chunk) > self.batch_size or (
                self.config.one_chunk_per_slice and chunk.slice in batch.slices
            ):
                continue
            if chunk.oldest.number < self.version.number + ahead - self.config.max_lag:
                return "lag"
            batch.add(chunk, self._size(chunk), self._size(chunk))
            self._wait_for_late(chunk)
            return ""
        return "lag"

    # --- the whole state ---

    def dump(self) -> dict[str, Any]:
        return super().dump() | {
            "consumed": self.consumed_up_to, "durable": self.durable_up_to,
            "evicted": list(self.evicted.items()), "min_rows": self.min_rows,
            "granted": [[n, b.granted_size] for n, b in self.batches.items()],
        }  # fmt: skip

    def load(self, data: dict[str, Any], chunks: Sequence[tuple[int, Chunk]]) -> None:
        super().load(data, chunks)
        self.consumed_up_to, self.durable_up_to = data["consumed"], data["durable"]
        self.evicted = {int(k): int(v) for k, v in data["evicted"]}
        self.min_rows = data["min_rows"]
        for number, chunk in chunks:
            if number <= self.delivered:
                self.kept.setdefault(number, []).append(chunk)
            else:
                self.batches.setdefault(number, _Batch()).add(chunk, self._size(chunk), 0)
                self._wait_for_late(chunk)
        for number, granted in data["granted"]:
            self.batches.setdefault(number, _Batch()).granted_size = granted

    def dump_chunks(self) -> Iterable[tuple[int, Chunk]]:
        for number, chunks in self.kept.items():
            for chunk in chunks:
                yield number, chunk
        for number in sorted(self.batches):
            for chunk in self.batches[number].chunks:
                yield number, chunk
