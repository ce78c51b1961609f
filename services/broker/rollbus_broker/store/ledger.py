"""Tables, cells and the log kept in step: each change of a table is one method here.

A method applies the event to the table, appends it to the log and gives cells back. After a restart
`rollbus_broker.store.recovery` applies the log to fresh tables through the same events.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from rollbus_broker.store.log import Log
from rollbus_broker.store.pool import Slab, SlabPool
from rollbus_broker.store.queue_table import QueueTable
from rollbus_broker.store.records import Chunk, TicketInfo
from rollbus_broker.store.replay_table import ReplayTable
from rollbus_broker.store.tables import Table
from rollbus_core.checkpoints import sync
from rollbus_core.feed import TableConfig
from rollbus_core.slabs import SlabFolder
from rollbus_core.version import Version
from rollbus_wire.errors import ConfigError, short

SAMPLERS: dict[str, type[Table]] = {"queue": QueueTable, "replay": ReplayTable}
#: The log is rewritten when it is this much and several times larger than its content.
COMPACT_BYTES = 16 << 20
_BYTES_PER_CHUNK = 300
#: Numbers of an epoch: those of a boot that lost records begin at boot << EPOCH_BITS.
EPOCH_BITS = 32


@dataclass
class Resting:
    """The cell of a ticket that returned while its holder may still write to it."""

    table: str
    ticket: TicketInfo
    #: What a late commit is answered.
    reason: str
    until: float


class Ledger:
    """All tables of the store by name.

    ``on_drop(table, sequence, reason, consumed)``: a chunk is given up; ``consumed``: an update has learned
    from it, the learner says, so that only a resume from before would miss it.
    ``on_lost(table, first, last)``: chunks of these numbers are lost with the log.
    """

    def __init__(
        self, log: Log, folder: SlabFolder, slab_bytes: int, boot: int, *, rest_s: float,
        on_drop: Callable[[str, int, str, bool], None] = lambda table, sequence, reason, consumed: None,
        on_lost: Callable[[str, int, int], None] = lambda table, first, last: None,
    ) -> None:  # fmt: skip
        self.log, self.rest_s, self.boot = log, rest_s, boot
        self.on_drop, self.on_lost = on_drop, on_lost
        #: New tables number their chunks and deliveries above this; it grows where records were lost.
        self.floor = 0
        #: When cells that nobody may know the holder of can be used again.
        self.release_at = math.inf
        self.tables: dict[str, Table] = {}
        self.resting: dict[int, Resting] = {}
        #: Ticket -> (table, sequence) of chunks that are kept, for repeated commits.
        self.committed: dict[int, tuple[str, int]] = {}
        self.pool = SlabPool(folder, slab_bytes, boot, on_new=self._new_slab, on_removed=self._removed_slab)

    # --- events ---

    def usable(self, name: str) -> Table:
        """The table ``name``. Raises `ConfigError` where the learner has to open it first."""
        table = self.tables.get(name)
        if table is None:
            known = ", ".join(self.tables) or "none"
            raise ConfigError(f"table {short(name)} is not open (open: {known}); the learner opens tables")
        if table.doubtful:
            raise ConfigError(f"table {short(name)} lost records of its log; the learner opens it anew")
        return table

    def open(
        self, name: str, config: TableConfig, version: Version, applied: int, now: float, outrun: bool = False
    ) -> Table:
        """Create or adopt a table for a learner at ``version``; ``outrun``: see `OpenTable`."""
        self._make_up(name, applied, outrun)
        self._log("open", name, c=config.model_dump(), v=list(version), a=applied, o=outrun)
        self._open(name, config, version, applied, now, outrun)
        return self.tables[name]

    def begin(self, table: Table, ticket: TicketInfo) -> None:
        """A ticket was granted."""
        self._log("ticket", table.name, d=ticket.to_data())
        table.begin(ticket)

    def end(self, table: Table, number: int, *, drop: str, rest: bool, reason: str, now: float) -> None:
        """A ticket returns; with ``rest`` its cell waits for its holder. ``drop`` counts a chunk."""
        self._log("end", table.name, t=number, drop=drop, rest=rest, r=reason)
        self._end(table, number, drop, rest, reason, now)

    def rested(self, number: int) -> None:
        """A resting cell may be used again."""
        entry = self.resting.pop(number)
        self._log("rested", entry.table, t=number)
        self.pool.free(entry.ticket.cell)

    def commit(self, table: Table, chunk: Chunk) -> None:
        """A chunk is complete."""
        self._log("commit", table.name, c=chunk.to_data())
        self._free(self._commit(table, chunk))

    def annotate(self, table: Table, sequence: int, column: str, values: bytes) -> None:
        """A late column has come."""
        self._log("annotate", table.name, n=sequence, c=column, v=values)
        self._free(table.annotate(sequence, column, values))

    def settle(self, table: Table, sequence: int, *, drop: bool) -> None:
        """A chunk waits no longer for late columns."""
        self._log("settle", table.name, n=sequence, drop=drop)
        self._free(table.settle(sequence, drop=drop))

    def deliver(self, table: Any, number: int, sample: tuple[str, int]) -> None:
        """Delivery ``number`` answers the request ``sample``: (sender, message id)."""
        self._log("deliver", table.name, n=number, s=list(sample))
        table.deliver(number, sample)

    def consumed(self, table: Table, sequence: int, version: Version, updates: int) -> None:
        """An update is done."""
        self._log("consumed", table.name, n=sequence, v=list(version), u=updates)
        self._free(table.consumed(sequence, version, updates))

    def durable(self, table: Table, sequence: int) -> None:
        """A checkpoint holds the deliveries up to ``sequence``."""
        self._log("durable", table.name, n=sequence)
        self._free(table.durable(sequence))

    def evict(self, table: Table) -> int:
        """Give up some chunks for room; how many."""
        freed = table.evict()
        if freed:
            self._log("evict", table.name)
            self._free(freed)
        return len(freed)

    def flush(self) -> bool:
        """From here on what happened is not lost; False: the disk is full, nothing may be answered.

        Rewrites the log if that is worth it.
        """
        if self.log.num_bytes > COMPACT_BYTES:
            live = sum(table.num_chunks() for table in self.tables.values())
            if self.log.num_bytes > COMPACT_BYTES + 4 * _BYTES_PER_CHUNK * live:
                self.compact()
        return self.log.flush()

    def _make_up(self, name: str, applied: int, outrun: bool) -> None:
        """A learner that has had more than was delivered proves that the log lost its end: its numbers may
        have been used, so others follow.
        """
        table = self.tables.get(name)
        outrun |= applied > (table.delivered if table else 0)
        if not outrun and (table is not None or not self.floor):
            return
        last = 0 if table is None else table.last_known if table.doubtful else table.sequence
        if self.floor <= max(applied, last):
            self.floor = max(self.boot, (max(applied, last) >> EPOCH_BITS) + 1) << EPOCH_BITS
            self.log.append({"k": "floor", "n": self.floor})
        self.on_lost(name, last + 1, self.floor - 1)

    # --- parts that recovery shares ---

    def forget(self) -> None:
        """Be as if nothing of the log had been applied; for before slabs are adopted."""
        self.floor, self.tables, self.resting, self.committed = 0, {}, {}, {}

    def _open(
        self, name: str, config: TableConfig, version: Version, applied: int, now: float, outrun: bool
    ) -> None:
        table = self.tables.get(name)
        if table is not None and table.config.sampler != config.sampler:
            for ticket in list(table.tickets.values()):
                self._end(table, ticket.number, "", True, "expired", now)
            self._free(list(table.chunks()))
            table = None
        outrun |= table is not None and applied > table.delivered
        if table is not None and outrun and self.floor > table.sequence:
            table.doubt(self.floor, 0)
        if table is None:
            table = self.tables[name] = self.new_table(name, config)
        table.config = config
        if table.freed_unread:
            self.pool.unread.add(name)
        else:
            self.pool.unread.discard(name)
        freed, void = table.open(version, applied)
        for ticket in void:
            self._rest(name, ticket, "lineage", now)
        self._free(freed)

    def new_table(self, name: str, config: TableConfig) -> Table:
        """An empty table."""
        table = SAMPLERS[config.sampler](name, config)
        table.on_drop = lambda chunk, *why: self.on_drop(name, chunk.sequence, *why)
        table.sequence = table.floor = self.floor
        return table

    def _end(self, table: Table, number: int, drop: str, rest: bool, reason: str, now: float) -> None:
        ticket = table.end(number, drop)
        if ticket is None:
            return
        if rest:
            self._rest(table.name, ticket, reason, now)
        else:
            self.pool.free(ticket.cell)

    def _commit(self, table: Table, chunk: Chunk) -> list[Chunk]:
        self.committed[chunk.ticket] = (table.name, chunk.sequence)
        return table.commit(chunk)

    def _rest(self, name: str, ticket: TicketInfo, reason: str, now: float) -> None:
        self.resting[ticket.number] = Resting(name, ticket, reason, now + self.rest_s)

    def _free(self, chunks: Iterable[Chunk]) -> None:
        for chunk in chunks:
            self.committed.pop(chunk.ticket, None)
            self.pool.free(chunk.cell)

    def _log(self, kind: str, table: str, **fields: Any) -> None:
        self.log.append({"k": kind, "table": table, **fields})

    def _new_slab(self, slab: Slab) -> None:
        if self.log.fsync:
            sync(self.pool.folder.folder)
        self.log.append({"k": "slab", **slab.to_data()})

    def _removed_slab(self, slab: Slab) -> None:
        self._log("unslab", slab.table, id=slab.number)

    # --- restart ---

    def compact(self) -> None:
        """Rewrite the log as the present state."""
        self.log.rewrite(self._dump())

    def _dump(self) -> Iterator[dict[str, Any]]:
        yield {"k": "floor", "n": self.floor}
        for slab in self.pool.slabs.values():
            yield {"k": "slab", **slab.to_data()}
        for name, table in self.tables.items():
            yield {"k": "state", "table": name, "d": table.dump()}
            sequences = []
            for batch, chunk in table.dump_chunks():
                sequences.append(chunk.sequence)
                yield {"k": "chunk", "table": name, "b": batch, "c": chunk.to_data()}
            yield {"k": "loaded", "table": name, "q": sequences}
            for ticket in table.tickets.values():
                yield {"k": "ticket", "table": name, "d": ticket.to_data()}
        for entry in self.resting.values():
            yield {"k": "rest", "table": entry.table, "d": entry.ticket.to_data(), "r": entry.reason}
