"""What the writers of a run put into its ``audit`` folder, read back.

`rollbus_core.audit` has the formats.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from rollbus_core.feed import TRAINING_TABLE
from rollbus_core.version import Version
from rollbus_wire.errors import short

#: [episode, first step, number of steps].
Span = tuple[int, int, int]
_Record = TypeVar("_Record")


@dataclass
class Chunk:
    """One commit of an actor; ``sequence`` -1: not acknowledged."""

    spans: list[Span]
    sequence: int = -1
    reason: str = ""
    answered: bool = False
    time: float = math.inf

    @property
    def steps(self) -> int:
        return steps(self.spans)


class Applied(NamedTuple):
    """A chunk that went into the update which made ``version``."""

    sequence: int
    version: Version
    spans: list[Span]


class Unread(NamedTuple):
    """A chunk that this update could not use."""

    sequence: int
    version: Version
    reason: str


class Draw(NamedTuple):
    """``drawn`` decisions of a replay table, and the chunks ``new`` that were seen for the first time."""

    version: Version
    time: float
    drawn: int
    new: list[list[Span]]


class Dropped(NamedTuple):
    """A chunk that the store gave up; ``consumed``: the learner had said that it had learned from it."""

    reason: str
    consumed: bool


class Lost(NamedTuple):
    """Numbers of a table that are lost with the store's log, from the first to the last."""

    table: str
    first: int
    last: int


@dataclass
class Records:
    """What the writers of a run wrote down.

    They are read in this order: effects before causes, so that of a run that goes on nothing is met whose
    cause was not read.
    """

    #: Versions that metrics.jsonl tells of.
    learned: list[Version] = field(default_factory=list)
    draws: list[Draw] = field(default_factory=list)
    applied: list[Applied] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    #: Where each start of the learner went on, and the damaged checkpoints that it passed over.
    begun: list[Version] = field(default_factory=list)
    passed_over: list[Version] = field(default_factory=list)
    dropped: dict[int, Dropped] = field(default_factory=dict)
    lost: list[Lost] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    #: Lines that are no records, for people.
    damaged: list[str] = field(default_factory=list)

    def is_lost(self, sequence: int) -> bool:
        """Whether it is of a part of the store's log that is lost."""
        return any(table == TRAINING_TABLE and first <= sequence <= last for table, first, last in self.lost)

    @classmethod
    def read(cls, folder: Path) -> Records:
        """Of the run whose ``audit`` folder this is."""
        found = cls()
        versions = found._lines(folder.parent / "metrics.jsonl", _metrics)
        found.learned = [version for version in versions if version is not None]
        found.draws = found._lines(folder / "drawn.jsonl", _draw)
        found.applied = found._lines(folder / "applied.jsonl", _applied)
        found.unread = found._lines(folder / "unread.jsonl", _unread)
        starts = found._lines(folder / "lineages.jsonl", _start)
        found.begun = [version for version, _ in starts]
        found.passed_over = [version for _, versions in starts for version in versions]
        for line in found._lines(folder / "dropped.jsonl", _dropped):
            if isinstance(line, Lost):
                found.lost.append(line)
            else:
                found.dropped |= line
        for path in sorted(folder.glob("sent-*.jsonl")):
            by_ticket: dict[int, Chunk] = {}
            found._lines(path, functools.partial(_sent, by_ticket))
            found.chunks += by_ticket.values()
        return found

    def _lines(self, path: Path, parse: Callable[[Any], _Record]) -> list[_Record]:
        """A record per line. The half of a last line that a writer left as it died is none, and no damage."""
        if not path.exists():
            return []
        whole, _, _ = path.read_bytes().rpartition(b"\n")
        records = []
        for number, line in enumerate(whole.split(b"\n") if whole else (), 1):
            try:
                records.append(parse(json.loads(line)))
            except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
                what = f"{type(error).__name__} {short(str(error))}"
                self.damaged.append(f"{path}:{number} is no such record ({what}): {short(line)}")
        return records


def spans_of(rows: Iterable[Iterable[list[int]]]) -> list[Span]:
    """The spans of a record's ``rows``."""
    return [(int(run[0]), int(run[1]), int(run[2])) for row in rows for run in row]


def steps(spans: Iterable[Span]) -> int:
    """In all of them."""
    return sum(length for _, _, length in spans)


def _metrics(line: Any) -> Version | None:
    """None: an algorithm or an old file without versions."""
    text = line.get("version", "")
    if not text:
        return None
    lineage, _, number = text.partition(".")
    return Version(int(lineage), int(number))


def _version(line: Any) -> Version:
    lineage, number = line["version"]
    return Version(int(lineage), int(number))


def _start(line: Any) -> tuple[Version, list[Version]]:
    """A start of the learner, and the versions of the checkpoints that it passed over."""
    return _version(line), [_version({"version": each}) for each in line.get("passed_over", ())]


def _draw(line: Any) -> Draw:
    new = [spans_of(rows) for rows in line["new"]]
    return Draw(_version(line), float(line["time"]), int(line["drawn"]), new)


def _applied(line: Any) -> Applied:
    return Applied(int(line["sequence"]), _version(line), spans_of(line["rows"]))


def _unread(line: Any) -> Unread:
    return Unread(int(line["sequence"]), _version(line), str(line["reason"]))


def _dropped(line: Any) -> dict[int, Dropped] | Lost:
    if "first" in line:
        return Lost(str(line["table"]), int(line["first"]), int(line["last"]))
    return {int(line["sequence"]): Dropped(str(line["reason"]), bool(line["consumed"]))}


def _sent(by_ticket: dict[int, Chunk], line: Any) -> None:
    """A commit, or the answer to one."""
    if "ticket" in line:
        by_ticket[int(line["ticket"])] = Chunk(spans_of(line["rows"]))
    elif (chunk := by_ticket.get(int(line["answer"]))) is not None:
        chunk.sequence, chunk.reason, chunk.answered = int(line["sequence"]), str(line["reason"]), True
        chunk.time = float(line["time"])
