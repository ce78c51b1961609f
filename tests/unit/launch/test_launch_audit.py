"""The audit finds what is wrong in logs written by hand, and explains what is right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rollbus_launch.audit import audit, overlaps


class Logs:
    """An audit folder; chunk n has steps 10 n to 10 n + 9 of episode 5."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, name: str, *records: dict[str, Any]) -> None:
        with open(self.folder / f"{name}.jsonl", "a") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)

    def sent(self, number: int, sequence: int | None, reason: str = "", time: float = 0.0) -> None:
        self.put("sent-a", {"ticket": number, "slice": "h/0", **rows(number)})
        if sequence is not None:
            self.put("sent-a", {"answer": number, "sequence": sequence, "reason": reason, "time": time})

    def applied(self, number: int, sequence: int, version: tuple[int, int]) -> None:
        self.put("applied", {"sequence": sequence, "version": list(version), **rows(number)})


def rows(number: int) -> dict[str, Any]:
    return {"rows": [[[5, 10 * number, 10]]], "versions": ["0.0", "0.0"]}


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    (tmp_path / "audit").mkdir()
    logs = Logs(tmp_path / "audit")
    logs.put("lineages", {"version": [0, 0], "applied": 0})
    return logs


def test_a_good_run(logs: Logs) -> None:
    for number in range(4):
        logs.sent(number, number + 1)
    for number in range(3):
        logs.applied(number, number + 1, (0, number + 1))
    found = audit(logs.folder)
    assert found.good and (found.applied_chunks, found.applied_steps, found.waiting) == (3, 30, 1)


def test_a_lost_chunk_is_unexplained(logs: Logs) -> None:
    for number in range(3):
        logs.sent(number, number + 1)
    logs.applied(0, 1, (0, 1))
    logs.applied(2, 3, (0, 2))
    found = audit(logs.folder)
    assert not found.good and found.unexplained == 1 and "chunk 2" in found.problems[0]
    logs.put("dropped", {"table": "train", "sequence": 2, "reason": "memory", "consumed": False})
    found = audit(logs.folder)
    assert found.good and found.dropped == {"memory": 1}


def test_a_repeat_is_a_duplicate_unless_its_lineage_died(logs: Logs) -> None:
    logs.sent(0, 1)
    logs.applied(0, 1, (0, 3))
    logs.applied(0, 1, (0, 4))
    assert audit(logs.folder).duplicated == 10
    logs.put("lineages", {"version": [1, 3], "applied": 3})  # update 4 of lineage 0 is void
    found = audit(logs.folder)
    assert found.good and found.applied_chunks == 1


def test_steps_that_overlap_are_duplicates(logs: Logs) -> None:
    for number, sequence in ((0, 1), (1, 2)):
        logs.sent(number, sequence)
        logs.applied(number, sequence, (0, sequence))
    assert audit(logs.folder).good
    logs.put("sent-b", {"ticket": 1, "slice": "h/0", "rows": [[[5, 5, 2]]], "versions": []})
    logs.put("sent-b", {"answer": 1, "sequence": 3, "reason": "", "time": 0.0})
    logs.put("applied", {"sequence": 3, "version": [0, 3], "rows": [[[5, 5, 2]]], "versions": []})
    found = audit(logs.folder)
    assert found.duplicated == 1 and "steps 5 to 6 of episode 5" in found.problems[0]


def test_what_nobody_sent_is_unexplained(logs: Logs) -> None:
    logs.applied(0, 1, (0, 1))
    assert audit(logs.folder).unexplained == 1
    logs.sent(0, None)  # its answer was lost with the actor
    found = audit(logs.folder)
    assert found.good and found.unacknowledged == 1


def test_a_chunk_that_is_applied_as_something_else(logs: Logs) -> None:
    logs.sent(0, 1)
    logs.applied(1, 1, (0, 1))
    assert "was sent as" in audit(logs.folder).problems[0]


def test_what_the_store_refused_is_counted_by_reason(logs: Logs) -> None:
    logs.sent(0, -1, "lag")
    logs.sent(1, -1, "lag")
    found = audit(logs.folder)
    assert found.good and found.refused == {"lag": 2} and found.acknowledged_chunks == 0


def test_a_replay_chunk_that_is_never_drawn(logs: Logs) -> None:
    for number in range(3):
        logs.sent(number, number + 1, time=10.0)
    draws = [{"time": 20.0 + n, "drawn": 256, "batch": n, "version": [0, n]} for n in range(10)]
    logs.put("drawn", *(draw | {"new": [[[[5, 0, 10]]]] if not n else []} for n, draw in enumerate(draws)))
    found = audit(logs.folder)
    assert found.unexplained == 2 and found.applied_chunks == 1
    logs.put("dropped", {"table": "train", "sequence": 2, "reason": "evicted", "consumed": False})
    logs.put("drawn", draws[-1] | {"new": [[[[5, 20, 10]]]]})
    found = audit(logs.folder)
    assert found.good and found.dropped == {"evicted": 1} and found.applied_chunks == 2


def test_a_late_replay_chunk_had_no_chance(logs: Logs) -> None:
    logs.sent(0, 1, time=10.0)
    logs.sent(1, 2, time=30.0)
    logs.put("drawn", {"time": 20.0, "drawn": 256, "batch": 1, "version": [0, 1], "new": [[[[5, 0, 10]]]]})
    found = audit(logs.folder)
    assert found.good and found.waiting == 1


def test_overlaps() -> None:
    assert overlaps([(1, 0, 5), (1, 5, 5), (2, 3, 4)]) == []
    assert overlaps([(1, 0, 5), (1, 4, 5)]) == ["steps 4 to 4 of episode 1"]


def test_a_record_that_ends_before_the_metrics_was_cut(tmp_path: Path) -> None:
    """Else all that it lacks would count as waiting."""
    (tmp_path / "audit").mkdir()
    logs = Logs(tmp_path / "audit")
    logs.put("lineages", {"version": [0, 0], "applied": 0})
    for number in range(4):
        logs.sent(number, number + 1)
    for number in range(3):
        logs.applied(number, number + 1, (0, number + 1))
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text("".join(f'{{"version": "0.{n}"}}\n' for n in (1, 2, 3)))
    assert audit(logs.folder).good
    kept = (logs.folder / "applied.jsonl").read_text().splitlines(keepends=True)
    (logs.folder / "applied.jsonl").write_text(kept[0])
    found = audit(logs.folder)
    assert (found.waiting, found.unexplained, found.good) == (3, 2, False)
    assert "metrics.jsonl goes up to version 0.3, the record of what was applied to 0.1" in found.problems[0]
    (logs.folder / "applied.jsonl").unlink()
    assert audit(logs.folder).unexplained == 3


def test_starts_of_the_learner_that_nobody_wrote_down(tmp_path: Path) -> None:
    (tmp_path / "audit").mkdir()
    logs = Logs(tmp_path / "audit")
    logs.sent(0, 1)
    logs.applied(0, 1, (0, 1))
    found = audit(logs.folder)
    assert found.unexplained == 1 and "lineages.jsonl says nothing of start 0" in found.problems[0]


@pytest.mark.parametrize(
    "line", [bytes(range(128, 256)), b"[1]", b"null", b"[" * 100_000, b'{"version": [1]}']
)
@pytest.mark.parametrize(
    "name", ["applied", "drawn", "unread", "lineages", "dropped", "sent-a", "../metrics"]
)  # fmt: skip
def test_a_damaged_line_is_named(logs: Logs, name: str, line: bytes) -> None:
    logs.sent(0, 1)
    logs.applied(0, 1, (0, 1))
    path = (logs.folder / f"{name}.jsonl").resolve()
    before = path.read_bytes() if path.exists() else b""
    path.write_bytes(before + line)
    assert audit(logs.folder).good  # the half of a line that a writer left as it died
    path.write_bytes(before + line + b"\n")
    found, number = audit(logs.folder), before.count(b"\n") + 1
    assert found.unexplained == 1 and f"{path.name}:{number} is no such record" in found.problems[0]


def test_what_was_consumed_is_excused_only_where_its_update_is_void(logs: Logs) -> None:
    for number in range(4):
        logs.sent(number, number + 1)
    logs.put("dropped", *({"sequence": s, "reason": "full", "consumed": True} for s in (1, 2, 3)))
    for number in (0, 2, 3):
        logs.applied(number, number + 1, (0, number + 1))
    found = audit(logs.folder)
    assert found.unexplained == 1 and "chunk 2" in found.problems[0] and not found.dropped
    logs.applied(1, 2, (0, 2))
    assert audit(logs.folder).good
    logs.put("lineages", {"version": [1, 2], "applied": 2})  # updates 3 and 4 of lineage 0 are void
    logs.put("dropped", {"sequence": 4, "reason": "lineage", "consumed": False})
    found = audit(logs.folder)
    assert found.good and found.dropped == {"full": 1, "lineage": 1} and found.void == 2


def test_only_what_a_damaged_checkpoint_had_learned_from_is_lost_with_it(logs: Logs) -> None:
    """Updates 3 and 4 were in a checkpoint that is damaged; 5 was in none, and chunk 6 in no update."""
    for number in range(7):
        logs.sent(number, number + 1)
    for number in (0, 1, 2, 3, 4):
        logs.applied(number, number + 1, (0, number + 1))
    logs.applied(6, 7, (1, 3))
    logs.put("lineages", {"version": [1, 2], "applied": 2, "passed_over": []})
    found = audit(logs.folder)
    assert found.unexplained == 4 and not found.dropped, "no checkpoint was damaged"
    logs.put("lineages", {"version": [1, 2], "applied": 2, "passed_over": [[0, 4]]})
    found = audit(logs.folder)
    assert found.dropped == {"damaged_checkpoint": 2} and found.void == 3
    assert [text.split()[2] for text in found.problems] == ["5", "6"]


def test_a_damaged_checkpoint_explains_nothing_of_an_older_branch(logs: Logs) -> None:
    """Update 3 of lineage 0 died before the damaged checkpoint of lineage 1 was made."""
    for number in range(4):
        logs.sent(number, number + 1)
    for number in range(3):
        logs.applied(number, number + 1, (0, number + 1))
    logs.put("lineages", {"version": [1, 2], "applied": 2})
    logs.put("lineages", {"version": [2, 2], "applied": 2, "passed_over": [[1, 9]]})
    logs.applied(3, 4, (2, 3))
    found = audit(logs.folder)
    assert found.unexplained == 1 and "chunk 3" in found.problems[0] and not found.dropped


def test_numbers_of_a_lost_log_are_damaged_and_no_others(logs: Logs) -> None:
    for number, sequence in enumerate((1, 2, 3, 1 << 32 | 1, 1 << 32 | 2)):
        logs.sent(number, sequence)
    logs.applied(0, 1, (0, 1))
    logs.applied(4, 1 << 32 | 2, (0, 2))
    lost = {"first": 3, "last": (1 << 32) - 1, "reason": "damaged"}
    logs.put(
        "dropped", {"table": "train", "sequence": 3, "reason": "left", "consumed": False}
    )  # by an earlier start
    logs.put("dropped", {"table": "other", **lost})
    assert audit(logs.folder).unexplained == 2
    logs.put("dropped", {"table": "train", **lost})
    found = audit(logs.folder)
    assert found.dropped == {"damaged": 1} and found.unexplained == 2
