"""Does what was learned from agree with what was acknowledged? Reads logs; asks no service.

Everything is keyed by (episode, range of steps). What the actors wrote down (commits and the store's
answers) is compared with what the learner wrote down (applied or drawn chunks), and what the store gave
up is explained by its own list of chunks, never by counters. `rollbus_core.audit` has the formats.

``python -m rollbus_launch.audit RUN_DIR`` prints the result as JSON.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollbus_core.paths import RunPaths
from rollbus_core.version import Version
from rollbus_launch.audit_records import Applied, Chunk, Draw, Records, Span, Unread, steps

#: Problems that are written out; all are counted.
MAX_SHOWN = 20
#: A chunk that chance leaves undrawn with less than this probability was not sampleable.
UNDRAWN = 1e-9
#: Why a chunk is gone that only a damaged checkpoint had learned from.
DAMAGED_CHECKPOINT = "damaged_checkpoint"


@dataclass
class Verdict:
    """What the audit found. ``dropped`` and ``refused`` are chunks by reason, the others chunks or steps."""

    acknowledged_chunks: int = 0
    acknowledged_steps: int = 0
    #: Chunks of the surviving lineage, whole, and their steps.
    applied_chunks: int = 0
    applied_steps: int = 0
    #: Acknowledged, then given up.
    dropped: Counter[str] = field(default_factory=Counter)
    #: Not taken by the store in the first place.
    refused: Counter[str] = field(default_factory=Counter)
    #: Acknowledged and neither applied nor dropped when the run ended.
    waiting: int = 0
    #: Applied, but its acknowledgement never reached an actor's log.
    unacknowledged: int = 0
    #: Applied by a lineage that died.
    void: int = 0
    duplicated: int = 0
    unexplained: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not (self.duplicated or self.unexplained)

    def wrong(self, kind: str, num: int, text: str) -> None:
        """Count ``num`` steps or chunks as ``kind`` ("duplicated", "unexplained")."""
        setattr(self, kind, getattr(self, kind) + num)
        if len(self.problems) < MAX_SHOWN:
            self.problems.append(f"{kind}: {text}")

    def to_data(self) -> dict[str, Any]:
        """For JSON."""
        counts = {"dropped": dict(self.dropped), "refused": dict(self.refused)}
        return {**self.__dict__, **counts, "good": self.good}


def audit(folder: Path) -> Verdict:
    """Judge the run whose ``audit`` folder this is."""
    verdict, records = Verdict(), Records.read(folder)
    for chunk in records.chunks:
        if chunk.sequence >= 0:
            verdict.acknowledged_chunks += 1
            verdict.acknowledged_steps += chunk.steps
        elif chunk.answered:
            verdict.refused[chunk.reason] += 1
    for text in records.damaged:
        verdict.wrong("unexplained", 1, text)
    if verdict.acknowledged_chunks:
        _check_whole(verdict, records)
    if records.draws:
        _judge_replay(verdict, records)
    else:
        _judge_queue(verdict, records)
    return verdict


def _check_whole(verdict: Verdict, records: Records) -> None:
    """The learner's record reaches as far as its metrics do, and says where each of its starts went on."""
    written: list[Draw | Applied | Unread] = [*records.draws, *records.applied, *records.unread]
    recorded = _newest(line.version for line in written)
    learned, begun = _newest(records.learned), {version.lineage for version in records.begun}
    unknown = recorded.keys() - begun or (learned.keys() if not begun else set())
    for lineage in sorted(unknown):
        verdict.wrong("unexplained", 1, f"lineages.jsonl says nothing of start {lineage} of the learner")
    for lineage in sorted(learned.keys() & begun):
        if (missing := learned[lineage] - recorded.get(lineage, 0)) > 0:
            verdict.wrong(
                "unexplained", missing,
                f"metrics.jsonl goes up to version {lineage}.{learned[lineage]}, the record of what was "
                f"applied to {lineage}.{recorded.get(lineage, 0)}: it was cut or lost",
            )  # fmt: skip


def _newest(versions: Iterable[Version]) -> dict[int, int]:
    """Lineage -> the largest number in it."""
    found: dict[int, int] = {}
    for lineage, number in versions:
        found[lineage] = max(number, found.get(lineage, 0))
    return found


class Forks:
    """Which versions are ancestors of the last lineage."""

    def __init__(self, begun: Iterable[Version]) -> None:
        #: Lineage -> number at which it began.
        self._at = dict(begun)

    def survives(self, version: Version) -> bool:
        """Whether what ``version`` holds is in the last lineage's weights."""
        return self._reaches(version, max(self._at, default=0))

    def holds(self, checkpoint: Version, version: Version) -> bool:
        """Whether what ``version`` holds is in that checkpoint."""
        older = version.lineage <= checkpoint.lineage and version.number <= checkpoint.number
        return older and self._reaches(version, checkpoint.lineage)

    def _reaches(self, version: Version, last: int) -> bool:
        """Whether no lineage up to ``last`` began before ``version``."""
        lineage, number = version
        return all(number <= at for later, at in self._at.items() if lineage < later <= last)


# --- queue tables ---


def _judge_queue(verdict: Verdict, records: Records) -> None:
    forks = Forks(records.begun)
    applied: dict[int, list[Span]] = {}
    for line in records.applied:
        if forks.survives(line.version):
            if line.sequence in applied:
                verdict.wrong("duplicated", steps(line.spans), f"chunk {line.sequence} went into two updates")
            applied[line.sequence] = line.spans
    ever = {line.sequence for line in records.applied}
    verdict.void = len(ever - set(applied))
    verdict.applied_chunks = len(applied)
    verdict.applied_steps = sum(map(steps, applied.values()))
    for text in overlaps(span for spans in applied.values() for span in spans):
        verdict.wrong("duplicated", 1, text)
    # What was consumed is excused only where its update is void; then it is among those ever applied.
    reasons = {
        sequence: line.reason for sequence, line in records.dropped.items()
        if not line.consumed or sequence in ever
    }  # fmt: skip
    reasons |= {line.sequence: line.reason for line in records.unread if forks.survives(line.version)}
    # The store frees what a checkpoint holds; where that is damaged, its updates are void.
    for line in records.applied:
        if any(forks.holds(checkpoint, line.version) for checkpoint in records.passed_over):
            reasons.setdefault(line.sequence, DAMAGED_CHECKPOINT)
    _explain(verdict, records, applied, reasons)
    _match_origins(verdict, records.chunks, applied)


def _explain(
    verdict: Verdict, records: Records, applied: dict[int, list[Span]], reasons: dict[int, str]
) -> None:
    """Each acknowledged chunk was applied, dropped for a reason, or still waits."""
    given_up = (s for s, line in records.dropped.items() if line.reason != "left")
    newest = max([*applied, *given_up], default=-1)
    for chunk in records.chunks:
        sequence = chunk.sequence
        if sequence < 0 or sequence in applied:
            continue
        reason = reasons.get(sequence, "")
        if reason in ("", "left") and records.is_lost(sequence):  # also what an earlier start left
            reason = "damaged"
        if reason == "left" or (not reason and sequence > newest):
            verdict.waiting += 1
        elif reason:
            verdict.dropped[reason] += 1
        else:
            verdict.wrong(
                "unexplained", 1, f"chunk {sequence} {chunk.spans[:2]} was acknowledged and is gone"
            )


def _match_origins(verdict: Verdict, chunks: list[Chunk], applied: dict[int, list[Span]]) -> None:
    """Each applied chunk is one that an actor sent, step by step."""
    acknowledged = {chunk.sequence: chunk for chunk in chunks if chunk.sequence >= 0}
    orphans = {tuple(chunk.spans) for chunk in chunks if not chunk.answered}
    for sequence, spans in applied.items():
        chunk = acknowledged.get(sequence)
        if chunk is None and tuple(spans) in orphans:
            verdict.unacknowledged += 1
        elif chunk is None:
            verdict.wrong("unexplained", 1, f"chunk {sequence} {spans[:2]} was applied, but no actor sent it")
        elif chunk.spans != spans:
            verdict.wrong(
                "unexplained", 1, f"chunk {sequence} was sent as {chunk.spans[:2]}, not {spans[:2]}"
            )


# --- replay tables ---


def _judge_replay(verdict: Verdict, records: Records) -> None:
    """What was acknowledged is drawn sooner or later, unless it was evicted or there was no time."""
    chunks = records.chunks
    seen: dict[Span, int] = {}
    for draw in records.draws:
        for span in (span for spans in draw.new for span in spans):
            seen[span] = seen.get(span, 0) + 1
    for text in overlaps(seen):
        verdict.wrong("duplicated", 1, text)
    verdict.applied_steps = sum(length for _, _, length in seen)
    known = {span for chunk in chunks for span in chunk.spans}
    for span in seen.keys() - known:
        verdict.wrong("unexplained", span[2], f"{span} was drawn, but no actor sent it")
    chance = _Undrawn(chunks, records.draws)
    for chunk in chunks:
        if any(span in seen for span in chunk.spans):
            verdict.applied_chunks += 1
            verdict.unacknowledged += chunk.sequence < 0
        elif chunk.sequence < 0:
            continue
        elif (line := records.dropped.get(chunk.sequence)) is not None and line.reason != "left":
            verdict.dropped[line.reason] += 1
        elif records.is_lost(chunk.sequence):
            verdict.dropped["damaged"] += 1
        elif chance.of(chunk) > UNDRAWN:
            verdict.waiting += 1
        else:
            verdict.wrong("unexplained", 1, f"chunk {chunk.sequence} {chunk.spans[:2]} is never drawn")


class _Undrawn:
    """The probability that uniform draws leave a chunk out, at least: the table only grows."""

    def __init__(self, chunks: list[Chunk], draws: list[Draw]) -> None:
        self._total = max(1, sum(chunk.steps for chunk in chunks if chunk.sequence >= 0))
        self._draws = [(draw.time, draw.drawn) for draw in draws]

    def of(self, chunk: Chunk) -> float:
        """After its acknowledgement."""
        num = sum(drawn for time, drawn in self._draws if time > chunk.time)
        return math.exp(num * math.log1p(-min(0.999, chunk.steps / self._total)))


# --- spans ---


def overlaps(spans: Iterable[Span]) -> list[str]:
    """One text per pair of neighbouring spans that share steps."""
    by_episode: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for episode, first, length in spans:
        by_episode[episode].append((first, first + length))
    found = []
    for episode, ranges in by_episode.items():
        end = -1
        for first, after in sorted(ranges):
            if first < end:
                found.append(f"steps {first} to {min(end, after) - 1} of episode {episode}")
            end = max(end, after)
    return found


def main(arguments: list[str]) -> int:
    """Print the verdict on a run; 1 unless it is good."""
    (run_dir,) = arguments
    paths = RunPaths(run_dir)
    paths.check()
    verdict = audit(paths.audit)
    print(json.dumps(verdict.to_data(), indent=1))
    return 0 if verdict.good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
