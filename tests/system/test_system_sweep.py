"""``rollbus sweep`` with real runs: the table, a trial that is killed, a search that goes on."""

from __future__ import annotations

import json
import os
import signal

import pytest
from system_kit import PATIENCE_S, end, services_of
from system_runner import TINY, Runner, wait_for

pytest.importorskip("optuna")
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def test_a_sweep_ends_is_cut_and_goes_on(rollbus: Runner) -> None:
    folder = rollbus.folder / "sweep"
    arguments = [
        "sweep", TINY, "--over", "algorithm.learning_rate=1e-4..1e-1:log", "--dir", str(folder), "--json",
    ]  # fmt: skip
    done = rollbus(*arguments, "--trials", "2", timeout=300)
    assert done.returncode == 0, done.stderr
    first = json.loads(done.stdout)
    assert sorted(row["trial"] for row in first) == [0, 1]
    for row in first:
        summary = json.loads((folder / f"trial-{row['trial']}" / "summary.json").read_text())
        assert row["mean_return"] == summary["mean_return"] and summary["env_steps"] >= 2560
        config = (folder / f"trial-{row['trial']}" / "config.yaml").read_text()
        assert f"learning_rate: {row['algorithm.learning_rate']}" in config
    # Cut in the third trial: it has no row, and leaves nothing behind.
    process = rollbus.start(*arguments, "--trials", "4", "run.total_steps=200000")
    wait_for(lambda: services_of(folder / "trial-2"), PATIENCE_S, "the third trial")
    os.kill(process.pid, signal.SIGKILL)
    end(process)
    wait_for(lambda: not services_of(folder / "trial-2"), PATIENCE_S, "the end of its services")
    assert len(rollbus.lines(folder / "sweep.jsonl")) == 2
    done = rollbus(*arguments, "--trials", "3", timeout=300)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert sorted(row["trial"] for row in rows) == [0, 1, 2]
    assert [row for row in rows if row["trial"] < 2] == first
    returns = [row["mean_return"] for row in rows]
    assert returns == sorted(returns, reverse=True)
