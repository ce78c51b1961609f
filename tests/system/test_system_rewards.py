"""A reward model from data to training, by the commands that a person would type."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from system_kit import checkpoint_tensors
from system_runner import TINY, Runner

pytestmark = pytest.mark.timeout(400)


def ok(rollbus: Runner, *arguments: str) -> str:
    done = rollbus(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_model_of_progress_rewards_a_training(rollbus: Runner) -> None:
    run, model = rollbus.folder / "run", str(rollbus.folder / "model")
    ok(rollbus, "collect", TINY, "env.kind=continuous", "--episodes", "6", "--out", "demos")
    settings = ("steps=60", "width=16")
    (card,) = json.loads(ok(rollbus, "reward", "demos", *settings, "--out", model, "--json"))
    assert card["demonstrations"] == 5 and card["error"] < 0.25
    rewards = f"learner.rewards=[{{source: {model}, weight: 2.0}}]"
    tiny = ("train", TINY, "run.total_steps=640", "env.kind=continuous")
    ok(rollbus, *tiny, rewards, "--run-dir", str(run))
    means = [row["reward_model"] for row in rollbus.lines(run / "metrics.jsonl")]
    # Of shaping the sum is bounded by the potentials at the ends.
    assert len(means) == 5 and all(-1.0 <= mean <= 1.0 for mean in means) and any(means)
    assert not any("member" in name for name in checkpoint_tensors(run)), "the model is no part of the policy"

    done = rollbus("train", TINY, rewards, "deploy.restarts=0")
    assert done.returncode != 0
    assert "was learned from toy-continuous and does not fit toy-" in done.stdout + done.stderr
    Path(model, "reward.safetensors").write_bytes(b"")
    done = rollbus(*tiny, rewards)
    assert done.returncode == 2 and "is not the file that was written" in done.stderr
