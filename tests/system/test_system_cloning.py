"""Cloning of what needs memory, and an expert that takes over, with the real command."""

from __future__ import annotations

import json

import pytest
from system_runner import Runner

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

MEMORY = """
run: {total_updates: 30}
env: {name: toy, kind: memory}
policy: {name: recurrent, hidden: [32], state_size: 32}
algorithm: {name: sft, validation: 0.1, learning_rate: 3e-3}
data: {sources: [{path: demos}]}
eval: {episodes: 100}
"""
DAGGER = """
run: {total_updates: 6}
env: {name: toy, kind: memory, expert: true}
policy: {name: recurrent, hidden: [32], state_size: 32}
algorithm: {name: dagger, steps_per_round: 300, expert_decay: 0.5, learning_rate: 3e-3}
data: {sources: [{path: demos}]}
eval: {episodes: 100}
"""


def summary(rollbus: Runner, text: str, run: str) -> dict:
    (rollbus.folder / "r.yaml").write_text(text)
    if not (rollbus.folder / "demos").exists():
        done = rollbus("collect", "r.yaml", "--episodes", "60", "--out", "demos")
        assert done.returncode == 0, done.stderr
    done = rollbus("train", "r.yaml", "--run-dir", run, timeout=300)
    assert done.returncode == 0, done.stderr
    return dict(json.loads((rollbus.folder / run / "summary.json").read_text()))


def test_a_recurrent_policy_is_cloned_from_sequences(rollbus: Runner) -> None:
    assert summary(rollbus, MEMORY, "a")["evaluation"]["success_rate"] == 1.0
    plain = MEMORY.replace("name: recurrent, hidden: [32], state_size: 32", "name: mlp")
    assert summary(rollbus, plain, "b")["evaluation"]["success_rate"] < 0.8
    assert "validation_loss" in (rollbus.folder / "a/metrics.jsonl").read_text()


def test_a_recurrent_policy_learns_from_an_expert_that_takes_over(rollbus: Runner) -> None:
    assert summary(rollbus, DAGGER, "a")["evaluation"]["success_rate"] == 1.0
    rows = rollbus.lines(rollbus.folder / "a/metrics.jsonl")
    assert rows[0]["expert_share"] == 1.0 and rows[-1]["expert_share"] < 0.8
