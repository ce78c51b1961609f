"""Tables, cells and the log kept in step: each change of a table is one method here.

A method applies the event to the table, appends it to the log and gives cells back. After a restart
`recover` applies the log to fresh tables through the same events.
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
from rollbus_core.feed import TableConfig
from rollbus_core.slabs import SlabFolder
from rollbus_core.version import Version

SAMPLERS: dict[str, type[Table]] = {"queue": QueueTable, "replay": ReplayTable}
#: The log is rewritten when it is this much and several times larger than its content.
COMPACT_BYTES = 16 << 20
_BYTES_PER_CHUNK = 300


@dataclass
class Resting:
    """The cell of a ticket that returned while its holder may still write to it."""

    table: str
    ticket: TicketInfo
    #: What a late commit is answered.
    reason: str
    until: float


class Ledger:
    """All tables of the store by name. ``on_drop(table, chunk, reason)``: a chunk is given up."""

    def __init__(
        self, log: Log, folder: SlabFolder, slab_bytes: int, boot: int, *, rest_s: float,
        on_drop: Callable[[str, Chunk, str], None] = lambda table, chunk, reason: None,
    ) -> None:  # fmt: skip
        self.log, self.rest_s, self._on_drop = log, rest_s, on_drop
        self.tables: dict[str, Table] = {}
        self.resting: dict[int, Resting] = {}
        #: Ticket -> (table, sequence) of chunks that are kept, for repeated commits.
        self.committed: dict[int, tuple[str, int]] = {}
        self.pool = SlabPool(folder, slab_bytes, boot, on_new=self._new_slab, on_removed=self._removed_slab)

    # --- events ---

    def open(self, name: str, config: TableConfig, version: Version, applied: int, now: float) -> Table:
        """Create or adopt a table for a learner at ``version``."""
        self._log("open", name, c=config.model_dump(), v=list(version), a=applied)
        self._open(name, config, version, applied, now)
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

    # --- parts that recovery shares ---

    def _open(self, name: str, config: TableConfig, version: Version, applied: int, now: float) -> None:
        table = self.tables.get(name)
        if table is not None and table.config.sampler != config.sampler:
            for ticket in list(table.tickets.values()):
                self._end(table, ticket.number, "", True, "expired", now)
            self._free(list(table.chunks()))
            table = None
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
        table.on_drop = lambda chunk, reason: self._on_drop(name, chunk, reason)
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
        self.log.append({"k": "slab", **slab.to_data()})

    def _removed_slab(self, slab: Slab) -> None:
        self._log("unslab", slab.table, id=slab.number)

    # --- restart ---

    def compact(self) -> None:
        """Rewrite the log as the present state."""
        self.log.rewrite(self._dump())

    def _dump(self) -> Iterator[dict[str, Any]]:
        for slab in self.pool.slabs.values():
            yield {"k": "slab", **slab.to_data()}
        for name, table in self.tables.items():
            yield {"k": "state", "table": name, "d": table.dump()}
            for batch, chunk in table.dump_chunks():
                yield {"k": "chunk", "table": name, "b": batch, "c": chunk.to_data()}
            yield {"k": "loaded", "table": name}
            for ticket in table.tickets.values():
                yield {"k": "ticket", "table": name, "d": ticket.to_data()}
        for entry in self.resting.values():
            yield {"k": "rest", "table": entry.table, "d": entry.ticket.to_data(), "r": entry.reason}

    def recover(self, now: float, is_whole: Callable[[Chunk], bool]) -> dict[str, int]:
        """Apply the log, adopt its slabs, unlink strangers; what was found, by name.

        ``is_whole`` says whether the bytes of an adopted chunk are the ones committed.
        """
        slabs = _Replay(self, now).run(self.log.records)
        num_records, self.log.records = len(self.log.records), []
        taken: dict[int, set[int]] = {}
        for table in self.tables.values():
            for ticket in list(table.tickets.values()):
                self._end(table, ticket.number, "", True, "expired", now)
        cells = [entry.ticket.cell for entry in self.resting.values()]
        cells += [chunk.cell for table in self.tables.values() for chunk in table.chunks()]
        for cell in cells:
            taken.setdefault(cell.slab, set()).add(cell.offset)
        lost_slabs = sum(not self.pool.adopt(s, taken.get(s.number, set())) for s in slabs.values())
        strangers = len(self.pool.remove_strangers())
        lost = 0
        for table in self.tables.values():
            gone = table.lose(lambda c: c.cell.slab not in self.pool.slabs or not is_whole(c))
            lost += len(gone)
            self._free(gone)
        for slab_table in {slab.table for slab in self.pool.slabs.values()}:
            self.pool.trim(slab_table)
        self.compact()
        kept = sum(table.num_chunks() for table in self.tables.values())
        return {
            "records": num_records, "cut_bytes": self.log.cut_bytes, "chunks": kept,
            "lost_chunks": lost, "lost_slabs": lost_slabs, "stale_slabs": strangers,
        }  # fmt: skip


class _Replay:
    """Applies log records to the tables of a ledger; touches no cell, because none is mapped yet."""

    def __init__(self, ledger: Ledger, now: float) -> None:
        self.ledger, self.now = ledger, now
        self._slabs: dict[int, Slab] = {}
        self._chunks: list[tuple[int, Chunk]] = []
        self._state: dict[str, Any] = {}

    def run(self, records: Iterable[dict[str, Any]]) -> dict[int, Slab]:
        """The slabs that the log names, by id."""
        for record in records:
            getattr(self, "_on_" + record["k"])(record)
        return self._slabs

    def _table(self, record: dict[str, Any]) -> Any:
        return self.ledger.tables[record["table"]]

    def _on_slab(self, r: dict[str, Any]) -> None:
        slab = Slab.from_data(r)
        self._slabs[slab.number] = slab

    def _on_unslab(self, r: dict[str, Any]) -> None:
        del self._slabs[r["id"]]

    def _on_state(self, r: dict[str, Any]) -> None:
        self._state, self._chunks = r["d"], []

    def _on_chunk(self, r: dict[str, Any]) -> None:
        self._chunks.append((r["b"], Chunk.from_data(r["c"])))

    def _on_loaded(self, r: dict[str, Any]) -> None:
        config = TableConfig(**self._state["settings"])
        table = self.ledger.new_table(r["table"], config)
        table.load(self._state, self._chunks)
        for _, chunk in self._chunks:
            self.ledger.committed[chunk.ticket] = (table.name, chunk.sequence)
        self.ledger.tables[table.name] = table

    def _on_open(self, r: dict[str, Any]) -> None:
        version = Version.of(r["v"])
        self.ledger._open(r["table"], TableConfig(**r["c"]), version, r["a"], self.now)

    def _on_ticket(self, r: dict[str, Any]) -> None:
        ticket = TicketInfo.from_data(r["d"])
        ticket.expires = math.inf
        self._table(r).begin(ticket)

    def _on_end(self, r: dict[str, Any]) -> None:
        self.ledger._end(self._table(r), r["t"], r["drop"], r["rest"], r["r"], self.now)

    def _on_rest(self, r: dict[str, Any]) -> None:
        self.ledger._rest(r["table"], TicketInfo.from_data(r["d"]), r["r"], self.now)

    def _on_rested(self, r: dict[str, Any]) -> None:
        self.ledger.resting.pop(r["t"], None)

    def _on_commit(self, r: dict[str, Any]) -> None:
        self.ledger._free(self.ledger._commit(self._table(r), Chunk.from_data(r["c"])))

    def _on_annotate(self, r: dict[str, Any]) -> None:
        self.ledger._free(self._table(r).annotate(r["n"], r["c"], r["v"]))

    def _on_settle(self, r: dict[str, Any]) -> None:
        self.ledger._free(self._table(r).settle(r["n"], drop=r["drop"]))

    def _on_deliver(self, r: dict[str, Any]) -> None:
        self._table(r).deliver(r["n"], (r["s"][0], r["s"][1]))

    def _on_consumed(self, r: dict[str, Any]) -> None:
        self.ledger._free(self._table(r).consumed(r["n"], Version.of(r["v"]), r["u"]))

    def _on_durable(self, r: dict[str, Any]) -> None:
        self.ledger._free(self._table(r).durable(r["n"]))

    def _on_evict(self, r: dict[str, Any]) -> None:
        self.ledger._free(self._table(r).evict())
