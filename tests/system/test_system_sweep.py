"""``rollbus sweep`` with real runs: what its table says is what the runs measured."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from system_runner import TINY, Runner, wait_for

pytest.importorskip("optuna")
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def over(folder: Path, *more: str) -> list[str]:
    """The command of a sweep in ``folder``."""
    given = ["--over", "algorithm.learning_rate=1e-4..1e-1:log", "--dir", str(folder), "--json"]
    return ["sweep", TINY, *more, *given]


def test_the_table_of_a_sweep(rollbus: Runner) -> None:
    folder = rollbus.folder / "sweep"
    done = rollbus(*over(folder), "--trials", "2", timeout=300)
    assert done.returncode == 0, done.stderr
    first = json.loads(done.stdout)
    assert sorted(row["trial"] for row in first) == [0, 1]
    for row in first:
        summary = json.loads((folder / f"trial-{row['trial']}" / "summary.json").read_text())
        assert row["mean_return"] == summary["mean_return"] and summary["env_steps"] >= 2560
        config = (folder / f"trial-{row['trial']}" / "config.yaml").read_text()
        assert f"learning_rate: {row['algorithm.learning_rate']}" in config


def test_a_sweep_killed_in_a_trial_goes_on_with_those_that_were_finished(rollbus: Runner) -> None:
    """The second of three trials is killed, with all its processes, when it has learned for a while."""
    folder = rollbus.folder / "sweep"
    arguments = [*over(folder, "run.total_steps=40_000", "checkpoint.every_updates=10"), "--trials", "3"]
    process = rollbus.start(*arguments)
    trials, metrics = folder / "sweep.jsonl", folder / "trial-1/metrics.jsonl"
    wait_for(lambda: len(rollbus.lines(metrics)) > 20, 120, "the second trial learns")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)  # the trial's services still end when the sweep is started again
    (kept,) = rollbus.lines(trials)
    begun = (folder / "trial-1/config.yaml").read_text()
    summary = (folder / "trial-0/summary.json").stat().st_mtime_ns
    done = rollbus(*arguments, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = {row["trial"]: row for row in rollbus.lines(trials)}
    assert sorted(rows) == [0, 1, 2] and rows[0] == kept
    assert (folder / "trial-0/summary.json").stat().st_mtime_ns == summary
    assert f"learning_rate: {rows[1]['algorithm.learning_rate']}" in begun, "the same trial was begun again"
    assert all(row["mean_return"] is not None for row in rows.values())
    assert sorted(row["trial"] for row in json.loads(done.stdout)) == [0, 1, 2]
