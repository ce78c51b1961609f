"""``rollbus sweep`` with real runs: what its table says is what the runs measured."""

from __future__ import annotations

import json

import pytest
from system_runner import TINY, Runner

pytest.importorskip("optuna")
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def test_the_table_of_a_sweep(rollbus: Runner) -> None:
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
