"""Cloning beside another algorithm, and what must begin with trained weights, with the real command."""

from __future__ import annotations

from system_runner import RECIPES, Runner

RECIPE = """
run: {total_updates: 12, total_steps: 1_000_000}
env: {name: toy, kind: continuous, num_envs: 8}
algorithm: {name: ppo, num_steps: 16, minibatches: 2, learning_rate: 1e-3, sft_weight: 1.0, demo_batch: 64}
data: {sources: [{path: demos}]}
eval: {episodes: 4, num_envs: 4}
deploy: {layout: stated}
"""


def test_what_was_shown_is_learned_beside_ppo(rollbus: Runner) -> None:
    (rollbus.folder / "r.yaml").write_text(RECIPE)
    done = rollbus("collect", "r.yaml", "--episodes", "8", "--out", "demos")
    assert done.returncode == 0, done.stderr
    done = rollbus("train", "r.yaml", "--run-dir", "a")
    assert done.returncode == 0, done.stderr
    rows = rollbus.lines(rollbus.folder / "a/metrics.jsonl")
    losses = [row["sft_loss"] for row in rows]
    assert len(rows) == 12 and all("policy_loss" in row and row["env_steps"] > 0 for row in rows)
    assert sum(losses[-3:]) / 3 < sum(losses[:3]) / 3 - 0.1, losses


def test_stage_two_of_rlt_without_stage_one_starts_nothing(rollbus: Runner) -> None:
    recipe = str(RECIPES / "toy_two_ways_rlt.yaml")
    for start, why in {"": "is empty", "runs/nothing": "is not there"}.items():
        done = rollbus("train", recipe, "--run-dir", "a", f"run.start_from={start}")
        assert done.returncode != 0 and "run.start_from" in done.stderr and why in done.stderr, done.stderr
        assert not (rollbus.folder / "a").exists() and not list(rollbus.runtime.glob("*"))
