"""Several tasks in one run, in real processes: figures of each while it trains, and of its evaluation."""

from __future__ import annotations

import json

import pytest
from system_runner import RECIPES, Runner

pytestmark = pytest.mark.timeout(200)


def test_two_bodies_are_trained_and_told_apart(rollbus: Runner) -> None:
    run = rollbus.folder / "run"
    done = rollbus(
        "train", str(RECIPES / "toy_multitask_ppo.yaml"), "run.total_steps=10240", "eval.episodes=21",
        "deploy.layout=stated", "--run-dir", str(run),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    last = rollbus.lines(run / "metrics.jsonl")[-1]
    assert last["episodes/reach_2"] + last["episodes/reach_4"] == last["episodes"] > 0
    assert last["return_mean/reach_4"] < 0 and last["success_rate/reach_2"] >= 0
    evaluation = json.loads((run / "summary.json").read_text())["evaluation"]
    assert [evaluation["tasks"][name]["episodes"] for name in ("reach_2", "reach_4", "(mean)")] == [
        11,
        10,
        21,
    ]
    printed = rollbus("eval", str(run), "--episodes", "4")
    assert printed.returncode == 0 and all(
        word in printed.stdout for word in ("reach_2", "reach_4", "(mean)")
    )
