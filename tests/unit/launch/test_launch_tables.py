"""Tables for people show what is in the rows, brackets included, and fold no word at any width."""

from __future__ import annotations

import json

import pytest

from rollbus_launch import tables
from rollbus_launch.tables import show, show_one

HASH = "ab12" * 16
RUNS = [
    {"run": f"cartpole_ppo-20261203-05110{n}", "env_steps": 23_040_000 + n, "last_return": 477.04,
     "best_return": 483.4, "steps_per_s": 5700.2, "success_rate": 0.5, "training_s": 7.123,
     "episodes": 20, "ci95": 31.1}
    for n in range(3)
]  # fmt: skip


def printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int, rows, **options):
    """What `show` prints to a pipe of ``width``."""
    monkeypatch.setenv("COLUMNS", str(width))
    show(rows, as_json=False, **options)
    return capsys.readouterr().out


def test_brackets_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    show([{"what": "package onnx", "fix": "pip install 'rollbus[onnx]'"}], as_json=False)
    assert "pip install 'rollbus[onnx]'" in capsys.readouterr().out


@pytest.mark.parametrize("width", [45, 60, 80, 100, 160])
def test_no_word_is_folded_and_nothing_is_left_out(capsys, monkeypatch, width: int) -> None:
    text = printed(capsys, monkeypatch, width, RUNS)
    assert max(map(len, text.splitlines())) <= width
    words = text.split()
    for row in RUNS:
        assert {tables.text(value) for value in row.values()} <= set(words)
    assert words.count("477.0") == len(RUNS)
    assert {"env", "steps", "success", "rate", "training"} <= set(words)


def test_a_table_that_is_too_wide_is_turned(capsys, monkeypatch) -> None:
    lines = [line.split() for line in printed(capsys, monkeypatch, 80, RUNS).splitlines()]
    assert ["run", RUNS[0]["run"], RUNS[1]["run"]] in lines and ["run", RUNS[2]["run"]] in lines
    assert ["last", "return", "477.0", "477.0"] in lines and ["last", "return", "477.0"] in lines
    assert lines.count([]) == 2  # after each block
    wide = [line.split() for line in printed(capsys, monkeypatch, 160, RUNS).splitlines()]
    assert [tables.text(value) for value in RUNS[2].values()] in wide


def test_text_wraps_between_words_and_a_path_stays_whole(capsys, monkeypatch) -> None:
    path = "/somewhere/" + "deep/" * 20
    text = printed(capsys, monkeypatch, 60, [{"folder": path, "meaning": "so many words " * 9}])
    assert path in text.split()
    assert all(len(line) <= 60 for line in text.splitlines() if path not in line)


def test_what_may_be_spared_is_left_out_and_named(capsys, monkeypatch) -> None:
    rows = [
        {"name": "hub-0", "host": "h" * 20, "loop_lag_s": 0.25, "stage": "s" * 20, "failure": None},
        {"name": "hub-1", "host": "h" * 20, "loop_lag_s": 0.25, "stage": "s" * 20, "failure": None},
    ]
    spare = ("loop_lag_s", "host", "failure")
    text = printed(capsys, monkeypatch, 50, rows, spare=spare)
    assert "2 columns left out (failure, loop lag s): wider terminal or --json" in text
    assert "h" * 20 in text and "0.25" not in text
    assert "left out" not in printed(capsys, monkeypatch, 80, rows, spare=spare)
    assert "1 column left out (failure)" in printed(capsys, monkeypatch, 60, rows, spare=spare)


def test_hashes_are_short_in_tables_and_whole_in_json(capsys, monkeypatch) -> None:
    row = {"content": HASH, "datasets": [HASH], "name": "abcd"}
    words = printed(capsys, monkeypatch, 80, [row]).split()
    assert words.count(HASH[:12]) == 2 and HASH not in words
    show([row], as_json=True)
    assert json.loads(capsys.readouterr().out) == [row]


def test_one_record_is_a_line_per_entry(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    show_one(
        {"applied_steps": 5, "dropped": {"lineage": 149, "stale": 2}, "why": "word " * 12}, title="audit"
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "audit" and lines[1].split() == ["applied", "steps", "5"]
    assert lines[2].split() == ["dropped", "lineage", "149,", "stale", "2"]
    assert len(lines[3:]) == 4 and max(map(len, lines)) <= 40 and lines[4].startswith(" " * 15 + "word")


def test_no_rows_print_nothing_but_the_title(capsys, monkeypatch) -> None:
    assert printed(capsys, monkeypatch, 80, [], title="faults").split() == ["faults"]
