"""How a restarted store comes back: the log applied again, slabs adopted, what is lost named.

Where bytes of the log were lost, each table is `Table.doubtful` until a learner says what it has applied, and
all numbers go on in the range of this boot, so that none is used twice.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from rollbus_broker.store.ledger import EPOCH_BITS, Ledger
from rollbus_broker.store.log import Log
from rollbus_broker.store.pool import Slab
from rollbus_broker.store.records import Cell, Chunk, TicketInfo
from rollbus_core.feed import TableConfig
from rollbus_core.version import Version

#: The record of a commit is longer.
_LEAST_COMMIT_BYTES = 64


def recover(ledger: Ledger, now: float, is_whole: Callable[[Chunk], bool], boot: int) -> dict[str, int]:
    """Apply the log, adopt its slabs, unlink strangers; what was found, by name.

    ``is_whole`` says whether the bytes of an adopted chunk are the ones committed.
    """
    log = ledger.log
    lost_bytes = log.found.lost_bytes
    replay = Replay(ledger, now, gaps=lost_bytes > 0)
    slabs, misfits = replay.run(log.found.records), 0
    if lacking := not lost_bytes and replay.lacking:
        misfits = replay.misfits
        ledger.forget()
        replay = Replay(ledger, now, gaps=True)
        slabs = replay.run(log.found.records)
    lossy = lost_bytes > 0 or lacking
    num_records, log.found.records = len(log.found.records), []
    for table in ledger.tables.values():
        for ticket in list(table.tickets.values()):
            ledger._end(table, ticket.number, "", True, "expired", now)
    damaged = _doubt(ledger, replay, boot, lost_bytes) if lossy else 0
    if lossy:
        ledger.release_at = now + ledger.rest_s
    lost_slabs = _adopt(ledger, slabs.values(), withhold=lossy)
    strangers = len(ledger.pool.remove_strangers())
    lost = _lose(ledger, is_whole)
    for slab_table in {slab.table for slab in ledger.pool.slabs.values()}:
        ledger.pool.trim(slab_table)
    ledger.compact()
    kept = sum(table.num_chunks() for table in ledger.tables.values())
    return {
        "records": num_records, "cut_bytes": log.found.cut_bytes, "chunks": kept, "damaged_chunks": damaged,
        "lost_chunks": lost, "lost_slabs": lost_slabs, "stale_slabs": strangers,
        "misfits": misfits,
    }  # fmt: skip


def tell(found: dict[str, int], log: Log, to: Any) -> int:
    """Say ``to`` the service's log what was found; bytes that the store's log had lost in its middle."""
    if any(found.values()):
        to.info("store recovered", **found)
    if found["misfits"]:
        to.warning(
            "store log lacks records", file=str(log.path), records_without_those_before=found["misfits"],
            damaged_chunks=found["damaged_chunks"],
        )  # fmt: skip
    for offset, size in log.found.damage:
        to.warning(
            "store log damaged", file=str(log.path), offset=offset, lost_bytes=size,
            damaged_chunks=found["damaged_chunks"], kept=str(log.kept or "no room for a copy"),
        )  # fmt: skip
    return sum(size for _, size in log.found.damage)


def _doubt(ledger: Ledger, replay: Replay, boot: int, lost_bytes: int) -> int:
    """Mark all tables and name the chunks that are lost; how many are known by their numbers.

    Records at the end may have been of commits, too: as many numbers as they can have had are named.
    """
    ledger.floor, damaged = boot << EPOCH_BITS, 0
    for name in {*ledger.tables, *replay.wanted}:
        table, missing = ledger.tables.get(name), replay.missing(name)
        last = max(replay.wanted[name], default=0)
        if table is not None:
            last = max(last, table.sequence)
            table.doubt(ledger.floor, len(missing))
        beyond = range(last + 1, last + 2 + lost_bytes // _LEAST_COMMIT_BYTES)
        for sequence in [*missing, *beyond]:
            ledger.on_drop(name, sequence, "damaged", False)
        damaged += len(missing)
    return damaged


def _holders(ledger: Ledger) -> list[Cell]:
    """Cells in use."""
    cells = [entry.ticket.cell for entry in ledger.resting.values()]
    return cells + [chunk.cell for table in ledger.tables.values() for chunk in table.chunks()]


def _adopt(ledger: Ledger, slabs: Iterable[Slab], *, withhold: bool) -> int:
    """Map the slabs; how many are gone."""
    taken: dict[int, set[int]] = {}
    for cell in _holders(ledger):
        taken.setdefault(cell.slab, set()).add(cell.offset)
    adopted = [ledger.pool.adopt(s, taken.get(s.number, set()), withhold=withhold) for s in slabs]
    return adopted.count(False)


def _lose(ledger: Ledger, is_whole: Callable[[Chunk], bool]) -> int:
    """Drop the chunks whose bytes are gone; how many. A cell that others hold now is theirs."""
    pool, free = ledger.pool, []
    for number, entry in list(ledger.resting.items()):
        cell = entry.ticket.cell
        if cell.slab in pool.slabs and pool.generation(cell) != cell.generation:
            del ledger.resting[number]
            free.append(cell)
    lost = 0
    for table in ledger.tables.values():
        gone = table.lose(lambda chunk: chunk.cell.slab not in pool.slabs or not is_whole(chunk))
        lost += len(gone)
        for chunk in gone:
            ledger.committed.pop(chunk.ticket, None)
            free.append(chunk.cell)
    held = {cell[:2] for cell in _holders(ledger)}
    for cell in {cell[:2]: cell for cell in free if cell[:2] not in held}.values():
        pool.free(cell)
    return lost


class Replay:
    """Applies log records to the tables of a ledger; touches no cell, because none is mapped yet.

    ``gaps``: records are missing. One that does not fit without those before it is passed over; where no byte
    that is left tells so, it shows that some are missing.
    """

    def __init__(self, ledger: Ledger, now: float, *, gaps: bool) -> None:
        self.ledger, self.now, self._gaps = ledger, now, gaps
        #: Records that did not fit.
        self.misfits = 0
        #: Table -> sequences that it must have had, and those whose chunks were found.
        self.wanted: dict[str, set[int]] = defaultdict(set)
        self.found: dict[str, set[int]] = defaultdict(set)
        self._slabs: dict[int, Slab] = {}
        self._chunks: list[tuple[int, Chunk]] = []
        self._state: dict[str, Any] = {}

    def run(self, records: Iterable[dict[str, Any]]) -> dict[int, Slab]:
        """The slabs that the log names, by id."""
        for record in records:
            try:
                getattr(self, "_on_" + record["k"])(record)
            except (KeyError, ValueError, IndexError, StopIteration):
                self.misfits += 1
        return self._slabs

    @property
    def lacking(self) -> bool:
        """Whether there must have been other records."""
        return bool(self.misfits) or any(self.missing(name) for name in list(self.wanted))

    def missing(self, table: str) -> list[int]:
        """Sequences of acknowledged chunks that no intact record tells of."""
        return sorted(self.wanted[table] - self.found[table])

    def _skipped(self, table: str, sequence: int) -> None:
        """All chunks between the last one and this had a record, unless they are of another epoch."""
        last = self.ledger.tables[table].sequence
        if last >> EPOCH_BITS == sequence >> EPOCH_BITS:
            self.wanted[table].update(range(last + 1, sequence + 1))

    def _table(self, record: dict[str, Any]) -> Any:
        return self.ledger.tables[record["table"]]

    def _on_slab(self, r: dict[str, Any]) -> None:
        slab = Slab.from_data(r)
        self._slabs[slab.number] = slab

    def _on_unslab(self, r: dict[str, Any]) -> None:
        del self._slabs[r["id"]]

    def _on_floor(self, r: dict[str, Any]) -> None:
        self.ledger.floor = r["n"]

    def _on_state(self, r: dict[str, Any]) -> None:
        self._state, self._chunks = r["d"], []

    def _on_chunk(self, r: dict[str, Any]) -> None:
        chunk = Chunk.from_data(r["c"])
        self.wanted[r["table"]].add(chunk.sequence)
        self._chunks.append((r["b"], chunk))

    def _on_loaded(self, r: dict[str, Any]) -> None:
        self.wanted[r["table"]].update(r.get("q", ()))
        state, self._state = self._state, {}
        config = TableConfig(**state["settings"])
        table = self.ledger.new_table(r["table"], config)
        table.load(state, self._chunks)
        for _, chunk in self._chunks:
            self.ledger.committed[chunk.ticket] = (table.name, chunk.sequence)
            self.found[table.name].add(chunk.sequence)
        self.ledger.tables[table.name] = table

    def _on_open(self, r: dict[str, Any]) -> None:
        version = Version.of(r["v"])
        config, outrun = TableConfig(**r["c"]), r.get("o", False)
        self.ledger._open(r["table"], config, version, r["a"], self.now, outrun)

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
        chunk = Chunk.from_data(r["c"])
        self.wanted[r["table"]].add(chunk.sequence)
        table = self._table(r)
        self._skipped(table.name, chunk.sequence)
        table.sequence = max(table.sequence, chunk.sequence)
        if chunk.ticket in table.tickets:
            self.found[table.name].add(chunk.sequence)
        self._free(self.ledger._commit(table, chunk))

    def _on_annotate(self, r: dict[str, Any]) -> None:
        self._free(self._table(r).annotate(r["n"], r["c"], r["v"]))

    def _on_settle(self, r: dict[str, Any]) -> None:
        self._free(self._table(r).settle(r["n"], drop=r["drop"]))

    def _on_deliver(self, r: dict[str, Any]) -> None:
        table = self._table(r)
        begun = [t for t in table.tickets.values() if t.batch == r["n"] != 0]
        if begun and not self._gaps:
            raise ValueError(f"delivery {r['n']} came before its chunks")
        for ticket in begun:
            self.ledger._end(table, ticket.number, "", True, "expired", self.now)
        if self._gaps:
            table.delivered = max(table.delivered, r["n"])
        table.deliver(r["n"], (r["s"][0], r["s"][1]))

    def _on_consumed(self, r: dict[str, Any]) -> None:
        self._free(self._table(r).consumed(r["n"], Version.of(r["v"]), r["u"]))

    def _on_durable(self, r: dict[str, Any]) -> None:
        self._free(self._table(r).durable(r["n"]))

    def _on_evict(self, r: dict[str, Any]) -> None:
        self._free(self._table(r).evict())

    def _free(self, chunks: Iterable[Chunk]) -> None:
        for chunk in chunks:
            self.ledger.committed.pop(chunk.ticket, None)
