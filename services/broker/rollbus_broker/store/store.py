"""The store plane: answers tickets, commits and samples; the tables decide, the ledger remembers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import structlog
from pydantic import ValidationError

from rollbus_broker.store.annotations import Annotations
from rollbus_broker.store.answers import queue_batch, replay_batch, table_row, table_state
from rollbus_broker.store.checks import (
    MAX_ORDER,
    MAX_TABLES,
    LayoutCache,
    check,
    check_counts,
    check_draw,
    check_room,
    is_whole,
    priorities_of,
)
from rollbus_broker.store.drop_log import DropLog
from rollbus_broker.store.ledger import Ledger
from rollbus_broker.store.log import Log
from rollbus_broker.store.pool import TableFull
from rollbus_broker.store.queue_table import QueueTable
from rollbus_broker.store.records import Cell, Chunk, Grant, TicketInfo
from rollbus_broker.store.recovery import recover, tell
from rollbus_broker.store.replay_table import ReplayTable
from rollbus_broker.store.tables import Table
from rollbus_broker.store.waiting import Waiting, WaitingSample, WaitingTicket
from rollbus_core.config.models import BrokerConfig
from rollbus_core.feed import TableConfig
from rollbus_core.requests import Replies
from rollbus_core.slabs import SlabFolder
from rollbus_core.version import Version
from rollbus_wire.errors import (
    ConfigError,
    LimitExceeded,
    RollbusError,
    SharedMemoryFull,
    SpecError,
    WireError,
)
from rollbus_wire.limits import MAX_REASON
from rollbus_wire.link import Envelope, Link
from rollbus_wire.messages import (
    Annotate,
    Batch,
    Cancel,
    Commit,
    Committed,
    Consumed,
    Done,
    Durable,
    Fault,
    FetchUnannotated,
    Message,
    OpenTable,
    Ping,
    Pong,
    Sample,
    Ticket,
    TicketRequest,
)
from rollbus_wire.polling import drain

#: Answers remembered per sender; more than one actor can have waiting or in flight.
KEEP_REPLIES = 4096
#: Batches remembered for repeated requests; a table without room is asked again after so many seconds.
KEEP_BATCHES, RETRY_S = 4, 0.25


class Store:
    """All tables of one run. ``folder`` holds slabs, ``log_path`` is the log, ``audit`` hears of drops."""

    def __init__(
        self, link: Link, folder: Path, log_path: Path, config: BrokerConfig, boot: int, now: float, *,
        log: Any = None, audit: Path | None = None,
    ) -> None:  # fmt: skip
        self.link, self.config = link, config
        self._log = log or structlog.get_logger("broker")
        self.drops = DropLog(audit, log_path, self._log)
        self._replies = Replies(link, keep=KEEP_REPLIES)
        self._waiting = Waiting()
        self._outbox: list[tuple[Envelope, Message]] = []
        self._layouts = LayoutCache()
        self._numbers = itertools.count(boot << 32 | 1)
        self._batches: dict[tuple[str, int], Batch] = {}  # the last sent, by (sender, request id)
        #: Table -> open | full | memory: what its tickets wait for (disk: all wait).
        self._room: dict[str, str] = {}
        self._changed, self._disk_full, self._retry_at, self._expire_at = True, False, 0.0, 0.0
        self.counts = {"tickets_returned": 0, "evicted_chunks": 0}
        self.ledger = Ledger(
            Log(log_path, fsync=config.fsync), SlabFolder(folder), config.slab_bytes, boot,
            rest_s=config.ticket_timeout_s, on_drop=self.drops.put, on_lost=self.drops.lost,
        )  # fmt: skip
        found = recover(self.ledger, now, lambda chunk: is_whole(chunk, self.ledger.pool, config.fsync), boot)
        self.counts["damaged_log_bytes"] = tell(found, self.ledger.log, self._log)
        self.counts["misfits"] = found["misfits"]
        self._annotations = Annotations(self.ledger, self._answer, self.counts)
        self._handlers: dict[type[Message], Callable[[Envelope, Any, float], None]] = {
            TicketRequest: self._ticket_request, Commit: self._commit, Cancel: self._cancel,
            Sample: self._sample, Consumed: self._consumed, Durable: self._durable,
            OpenTable: self._open_table, Ping: self._ping,
            FetchUnannotated: self._annotations.fetch, Annotate: self._annotations.annotate,
        }  # fmt: skip

    # --- the loop ---

    def poll(self, now: float) -> bool:
        """Handle what arrived, move tickets and batches on; whether anything was done."""
        for envelope in drain(self.link):
            message = envelope.message
            if isinstance(message, (Fault, Done, Pong)):
                continue
            # Batches are large: `_sample` remembers a few, not the thousands that `Replies` keeps.
            if not isinstance(message, (Sample, FetchUnannotated)) and self._replies.known(envelope):
                continue
            self._handle(envelope, now)
        if now >= self._expire_at:
            self._expire_at = now + min(1.0, self.config.ticket_timeout_s / 4)
            self._expire(now)
        if self._changed or self._annotations.changed or now >= self._retry_at:
            self._changed, self._retry_at = False, now + RETRY_S
            self._annotations.advance(now)
            for name in list(self._waiting.tables()):
                self._advance(name, now)
        return self._send()

    def lost(self, producer: str, dead: bool, now: float, role: str = "") -> None:
        """A member is lost: its tickets return. ``dead``: it cannot write to their cells any more."""
        for table in self.ledger.tables.values():
            table.deserted |= dead and role == "learner" and table.config.one_chunk_per_slice
            for ticket in [t for t in table.tickets.values() if t.sender == producer]:
                self._return(table, ticket.number, rest=not dead, now=now)
        if dead:
            entries = list(self.ledger.resting.values())
            for entry in entries:
                if entry.ticket.sender == producer:
                    self.ledger.rested(entry.ticket.number)
        self._waiting.forget(producer)
        self._annotations.forget(producer)
        self._replies.forget(producer)
        self._changed = True

    def tables(self) -> list[dict[str, Any]]:
        """One map per table, for `Members` and /metrics."""
        return [
            table_row(
                table, self.ledger.pool.table_bytes(name),
                "disk" if self._disk_full else self._room.get(name, "open"),
                len(self._waiting.tickets(name)), len(self._waiting.samples(name)),
            )
            for name, table in self.ledger.tables.items()
        ]  # fmt: skip

    def close(self) -> None:
        """Write what is left."""
        self._send()
        self.ledger.log.close()
        self.drops.close(self.ledger.tables)

    def _handle(self, envelope: Envelope, now: float) -> None:
        handler = self._handlers.get(type(envelope.message))
        try:
            if handler is None:
                raise WireError(f"{envelope.message.kind} is not for the store")
            handler(envelope, envelope.message, now)
        except RollbusError as error:
            self._answer(envelope, Fault(error.code, str(error)))

    def _answer(self, envelope: Envelope, message: Message) -> None:
        """Sent at the end of this turn, after the log is written."""
        self._outbox.append((envelope, message))

    def _send(self) -> bool:  # only what is on disk is answered
        full, self._disk_full = self._disk_full, not self.ledger.flush()
        if self._disk_full != full:
            self._log.warning("disk full", answers="wait" if self._disk_full else "go on")
        if self._disk_full:
            return False
        sent, self._outbox = self._outbox, []
        self._replies.answer_all(sent)
        return bool(sent)

    # --- messages ---

    def _open_table(self, envelope: Envelope, message: OpenTable, now: float) -> None:
        try:
            config = TableConfig(**message.settings)
        except (ValidationError, TypeError) as error:
            raise ConfigError(f"settings of table {message.table!r}: {str(error)[:MAX_REASON]}") from None
        version = Version.of(message.version)
        check_counts(message.applied)
        if message.table not in self.ledger.tables and len(self.ledger.tables) >= MAX_TABLES:
            raise LimitExceeded(f"{MAX_TABLES} tables are open already")
        table = self.ledger.open(message.table, config, version, message.applied, now, message.outrun)
        self._changed = True
        self._answer(envelope, table_state(table, self.ledger.pool.table_bytes(table.name)))

    def _ticket_request(self, envelope: Envelope, message: TicketRequest, now: float) -> None:
        check_room(self._waiting.num_tickets)
        layout, key = self._layouts.read(message.layout)
        if not 1 <= message.num_decisions <= layout.num_decisions or message.num_rows != layout.num_rows:
            raise SpecError(
                f"ticket for {message.num_decisions} decisions of {message.num_rows} rows of slice "
                f"{message.slice!r} does not fit its layout: {layout.num_decisions} x {layout.num_rows}"
            )
        self._waiting.add_ticket(WaitingTicket(envelope, message, layout, key))
        self._changed = True

    def _commit(self, envelope: Envelope, message: Commit, now: float) -> None:
        number = message.ticket
        oldest, newest = Version.of(message.oldest), Version.of(message.newest)
        done = self.ledger.committed.get(number)
        resting = self.ledger.resting.get(number)
        table = next((t for t in self.ledger.tables.values() if number in t.tickets), None)
        if done is not None:
            self._answer(envelope, Committed(number, done[1]))
        elif resting is not None:
            self.ledger.rested(number)
            self._changed = True
            self._answer(envelope, Committed(number, -1, resting.reason))
        elif table is None:
            self._answer(envelope, Committed(number, -1, "expired"))
        else:
            self._finish(envelope, message, table, (oldest, newest), now)

    def _finish(
        self, envelope: Envelope, message: Commit, table: Table, versions: tuple[Version, Version], now: float
    ) -> None:
        ticket, (oldest, newest) = table.tickets[message.ticket], versions
        reason = check(message, ticket, self.ledger.pool) or table.refusal(ticket, oldest, newest)
        self._changed = True
        if reason:
            self.ledger.end(table, ticket.number, drop=reason, rest=False, reason=reason, now=now)
            self._answer(envelope, Committed(ticket.number, -1, reason))
            return
        chunk = Chunk(
            table.sequence + 1, ticket.number, ticket.cell, ticket.slice,
            np.array(message.lengths, np.int32), message.num_finals, message.digest, oldest, newest,
            list(message.order[:MAX_ORDER]), message.digest_kind,
        )  # fmt: skip
        if self.config.fsync:
            self.ledger.pool.sync(ticket.cell)
        self.ledger.commit(table, chunk)
        self._answer(envelope, Committed(ticket.number, chunk.sequence))

    def _cancel(self, envelope: Envelope, message: Cancel, now: float) -> None:
        for number in message.tickets:
            if number in self.ledger.resting:
                self.ledger.rested(number)
            for table in self.ledger.tables.values():
                self._return(table, number, rest=False, now=now)
        self._changed = True
        self._answer(envelope, Done())

    def _sample(self, envelope: Envelope, message: Sample, now: float) -> None:
        asked = (envelope.sender, envelope.id)
        check_room(self._waiting.num_samples)
        for waiting in self._waiting.samples(message.table):
            if (waiting.envelope.sender, waiting.envelope.id) == asked:
                waiting.envelope = envelope  # who dialled anew is answered there
                return
        if (answered := self._batches.get(asked)) is not None:
            self._answer(envelope, answered)
            return
        table = self.ledger.usable(message.table)
        check_draw(message, is_replay=isinstance(table, ReplayTable))
        if isinstance(table, QueueTable) and table.last_sample == asked:
            if (chunks := table.delivery(table.delivered)) is not None:
                self._answer(envelope, queue_batch(table, table.delivered, chunks, self.ledger.pool))
                return
        self._waiting.add_sample(WaitingSample(envelope, message))
        self._changed = True

    def _consumed(self, envelope: Envelope, message: Consumed, now: float) -> None:
        table = self.ledger.usable(message.table)
        check_counts(message.sequence, message.updates)
        priorities = priorities_of(message)
        self.ledger.consumed(table, message.sequence, Version.of(message.version), message.updates)
        if isinstance(table, ReplayTable) and priorities is not None:
            table.prioritise(*priorities)
        self._changed = True
        self._answer(envelope, table_state(table, self.ledger.pool.table_bytes(table.name)))

    def _durable(self, envelope: Envelope, message: Durable, now: float) -> None:
        table = self.ledger.usable(message.table)
        check_counts(message.sequence)
        self.ledger.durable(table, message.sequence)
        self._changed = True
        self._answer(envelope, table_state(table, self.ledger.pool.table_bytes(table.name)))

    def _ping(self, envelope: Envelope, message: Ping, now: float) -> None:
        self._answer(envelope, Pong())

    # --- moving on ---

    def _advance(self, name: str, now: float) -> None:
        """Grant the tickets and answer the samples of one table, as far as it lets."""
        table = self.ledger.tables.get(name)
        if table is None or table.doubtful or table.deserted:
            return
        waiting = self._waiting.tickets(name)
        left, room, full = [], "open", table.full
        for place, item in enumerate(waiting):
            if full:
                left += waiting[place:]
                break
            try:
                grant = table.place(item.request.slice, item.request.num_rows, item.request.num_decisions)
                if grant is None:
                    left.append(item)
                    full = table.full
                else:
                    self._grant(table, item, grant, self._allocate(table, item), now)
            except (TableFull, SharedMemoryFull) as error:
                room = "full" if isinstance(error, TableFull) else "memory"
                left.append(item)
                full = True
                if self._room.get(name) != room:
                    self._log.warning("tickets wait for room", table=name, why=str(error))
            except RollbusError as error:
                self._answer(item.envelope, Fault(error.code, str(error)))
        waiting[:] = left
        self._room[name] = room
        samples = self._waiting.samples(name)
        while samples and (batch := self._batch(table, samples[0], left)) is not None:
            envelope = samples.pop(0).envelope
            self._batches[envelope.sender, envelope.id] = batch
            if len(self._batches) > KEEP_BATCHES:
                del self._batches[next(iter(self._batches))]
            self._answer(envelope, batch)

    def _allocate(self, table: Table, item: WaitingTicket) -> Cell:
        while True:
            try:
                return self.ledger.pool.allocate(table.name, item.layout, item.key, table.config.max_bytes)
            except (TableFull, SharedMemoryFull):
                evicted = self.ledger.evict(table)
                if not evicted:
                    raise
                self.counts["evicted_chunks"] += evicted

    def _grant(self, table: Table, item: WaitingTicket, grant: Grant, cell: Cell, now: float) -> None:
        request = item.request
        ticket = TicketInfo(
            next(self._numbers), item.envelope.sender, request.slice, request.num_rows,
            grant.num_decisions, grant.batch, grant.min_version, cell,
            now + self.config.ticket_timeout_s,
        )  # fmt: skip
        self.ledger.begin(table, ticket)
        answer = Ticket(
            ticket.number, cell.slab, self.ledger.pool.slabs[cell.slab].num_bytes, cell.offset,
            cell.generation, grant.num_decisions, list(grant.min_version), grant.mode,
        )  # fmt: skip
        self._answer(item.envelope, answer)

    def _batch(self, table: Table, sample: WaitingSample, waiting: list[WaitingTicket]) -> Batch | None:
        asked = (sample.envelope.sender, sample.envelope.id)
        number = table.delivered + 1
        if isinstance(table, QueueTable):
            if not table.complete([item.request.num_rows for item in waiting]):
                return None
            self.ledger.deliver(table, number, asked)
            return queue_batch(table, number, table.delivery(number) or [], self.ledger.pool)
        assert isinstance(table, ReplayTable)
        if not table.can_draw():
            return None
        self.ledger.deliver(table, number, asked)
        return replay_batch(table, number, sample.request, self.ledger.pool)

    def _return(self, table: Table, number: int, *, rest: bool, now: float, drop: str = "") -> None:
        if number in table.tickets:
            self.ledger.end(table, number, drop=drop, rest=rest, reason="expired", now=now)
            self.counts["tickets_returned"] += 1

    def _expire(self, now: float) -> None:
        for table in self.ledger.tables.values():
            late = [t for t in table.tickets.values() if now > t.expires]
            for ticket in late:
                self._log.warning(
                    "ticket expired", table=table.name, slice=ticket.slice, holder=ticket.sender,
                    after_s=self.config.ticket_timeout_s,
                )  # fmt: skip
                self._return(table, ticket.number, rest=True, now=now, drop="expired")
                self._changed = True
        if now > self.ledger.release_at:
            self.ledger.release_at = math.inf
            self._changed |= self.ledger.pool.release()
        for entry in [e for e in self.ledger.resting.values() if now > e.until]:
            self.ledger.rested(entry.ticket.number)
            self._changed = True
