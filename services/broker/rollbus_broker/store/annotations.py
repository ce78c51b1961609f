"""Late columns: which annotator is given which chunk, until when, and what came of it.

A table with `TableConfig.late_columns` keeps each committed chunk back until all of them have come, at most
``late_deadline_s``. The tables hold what lasts; what is here may be lost with the process: then a chunk's
time begins anew, and annotators ask again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from rollbus_broker.store.answers import chunk_map
from rollbus_broker.store.checks import check_room
from rollbus_broker.store.ledger import Ledger
from rollbus_broker.store.records import Chunk
from rollbus_broker.store.tables import Table
from rollbus_wire.errors import ConfigError, Forbidden, RollbusError, WireError, short
from rollbus_wire.link import Envelope
from rollbus_wire.messages import Annotate, Annotated, Fault, FetchUnannotated, Message, Unannotated

#: Attached columns that are remembered, so that one that comes again is told from one that is late.
KEEP_ATTACHED = 16_384
#: A chunk that was given out and did not come back is given out again after this part of its time.
AGAIN_PART = 0.5

#: (table, sequence, column).
Place = tuple[str, int, str]


@dataclass
class _Given:
    """Who may annotate a place, and when the next may be given it, too."""

    senders: set[str] = field(default_factory=set)
    again_at: float = 0.0


class Annotations:
    """Hands chunks of ``ledger``'s tables to annotators. ``counts`` are shown in /metrics."""

    def __init__(
        self, ledger: Ledger, answer: Callable[[Envelope, Message], None], counts: dict[str, int]
    ) -> None:
        self._ledger, self._answer, self._counts = ledger, answer, counts
        names = ("annotated_chunks", "unannotated_chunks", "late_annotations", "repeated_annotations")
        counts.update(dict.fromkeys(names, 0))
        self._asking: list[tuple[Envelope, FetchUnannotated]] = []
        self._last: dict[str, tuple[int, Unannotated]] = {}
        self._given: dict[Place, _Given] = {}
        #: (table, sequence) -> when it goes on without.
        self._due: dict[tuple[str, int], float] = {}
        self._attached: OrderedDict[Place, None] = OrderedDict()
        #: Whether tables can go on since the last `advance`.
        self.changed = False

    def fetch(self, envelope: Envelope, message: FetchUnannotated, now: float) -> None:
        """An annotator asks for a chunk; one request of each waits. A repeated one gets the same answer."""
        number, answer = self._last.get(envelope.sender, (0, None))
        if answer is not None and number == envelope.id:
            self._answer(envelope, answer)
            return
        self._asking = [entry for entry in self._asking if entry[0].sender != envelope.sender]
        check_room(len(self._asking))
        self._asking.append((envelope, message))
        self.changed = True

    def annotate(self, envelope: Envelope, message: Annotate, now: float) -> None:
        """A column comes: once, by somebody who was given the chunk, while it waits."""
        place = (message.table, message.sequence, message.column)
        table = self._ledger.tables.get(message.table)
        chunk = table.unannotated.get(message.sequence) if table is not None else None
        if table is None or chunk is None or message.column in chunk.late:
            outcome = "again" if place in self._attached else "late"
            self._counts["repeated_annotations" if outcome == "again" else "late_annotations"] += 1
            self._answer(envelope, Annotated(*_named(message), outcome))
            return
        given = self._given.get(place)
        if given is None or envelope.sender not in given.senders:
            raise Forbidden(f"chunk {message.sequence} was not given to you for {short(message.column)}")
        values = _checked(message.values, chunk)
        self._ledger.annotate(table, message.sequence, message.column, values.tobytes())
        self._attached[place] = None
        while len(self._attached) > KEEP_ATTACHED:
            self._attached.popitem(last=False)
        del self._given[place]
        self._counts["annotated_chunks"] += message.sequence not in table.unannotated
        self._answer(envelope, Annotated(*_named(message), "attached"))
        self.changed = True

    def advance(self, now: float) -> None:
        """Let go on what has waited long enough, hand out what has come."""
        self.changed = False
        waiting = set()
        for table in self._ledger.tables.values():
            if table.doubtful:
                continue
            for sequence in list(table.unannotated):
                key = (table.name, sequence)
                if now >= self._due.setdefault(key, now + table.config.late_deadline_s):
                    self._ledger.settle(table, sequence, drop=table.config.late_missing == "drop")
                    self._counts["unannotated_chunks"] += 1
                else:
                    waiting.add(key)
        self._due = {key: due for key, due in self._due.items() if key in waiting}
        self._given = {place: given for place, given in self._given.items() if place[:2] in waiting}
        self._asking = [entry for entry in self._asking if not self._serve(*entry, now)]

    def forget(self, sender: str) -> None:
        """An annotator is lost: what it was given is given to the next who asks."""
        self._asking = [entry for entry in self._asking if entry[0].sender != sender]
        self._last.pop(sender, None)
        for given in self._given.values():
            if sender in given.senders:
                given.senders.discard(sender)
                given.again_at = 0.0
        self.changed = True

    def _serve(self, envelope: Envelope, message: FetchUnannotated, now: float) -> bool:
        """Answer a request if there is something to say."""
        table = self._ledger.tables.get(message.table)
        if table is None or table.doubtful:
            return False
        try:
            chunk = self._next(table, message.column, now)
        except RollbusError as error:
            self._answer(envelope, Fault(error.code, str(error)))
            return True
        if chunk is None:
            return False
        given = self._given.setdefault((table.name, chunk.sequence, message.column), _Given())
        left_s = self._due[table.name, chunk.sequence] - now
        given.senders.add(envelope.sender)
        given.again_at = now + AGAIN_PART * left_s
        item = chunk_map(chunk, self._ledger.pool)
        answer = Unannotated(table.name, message.column, item, left_s)
        self._last[envelope.sender] = (envelope.id, answer)
        self._answer(envelope, answer)
        return True

    def _next(self, table: Table, column: str, now: float) -> Chunk | None:
        """The oldest chunk that lacks ``column`` and that nobody is at."""
        if column not in table.config.late_columns:
            wanted = ", ".join(table.config.late_columns) or "none"
            raise ConfigError(
                f"table {table.name!r} waits for no column {short(column)} (but for: {wanted}); the run's "
                "learner.rewards name them, late:NAME"
            )
        for sequence, chunk in table.unannotated.items():
            given = self._given.get((table.name, sequence, column))
            if column not in chunk.late and (given is None or now >= given.again_at):
                return chunk
        return None


def _named(message: Annotate) -> tuple[str, str, int]:
    return message.table, message.column, message.sequence


def _checked(values: np.ndarray, chunk: Chunk) -> np.ndarray:
    """``values`` if they are one finite float32 per decision. Raises `WireError`."""
    if values.dtype != np.float32 or values.shape != chunk.late_shape:
        raise WireError(
            f"a late column of chunk {chunk.sequence} is float32 {list(chunk.late_shape)}, this one is "
            f"{values.dtype} {list(values.shape)}"
        )
    if not np.isfinite(values).all():
        raise WireError(f"the late column of chunk {chunk.sequence} holds a number that is not finite")
    return values
