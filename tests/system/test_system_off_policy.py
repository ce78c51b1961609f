"""Off-policy runs through all four services, with the options that reach from one service to another."""

from __future__ import annotations

import json

import pytest
from system_runner import Runner

pytestmark = pytest.mark.timeout(200)
CHAIN = """
run: {total_steps: 3000}
env: {name: toy, kind: discrete, num_envs: 8}
policy: {head: q_values}
algorithm:
  {name: dqn, priority: 0.6, n_step: 3, start_steps: 200, batch_size: 64, learning_rate: 3e-3, tau: 0.05}
eval: {episodes: 40, num_envs: 4}
deploy: {layout: stated}
"""


def test_dqn_solves_the_chain_with_n_step_returns_and_priorities(rollbus: Runner) -> None:
    """0.85 on average is the best there is; errors travel to the store and weights change with them."""
    run = rollbus.folder / "run"
    recipe = rollbus.folder / "chain.yaml"
    recipe.write_text(CHAIN)
    done = rollbus("train", str(recipe), "--run-dir", str(run), timeout=150)
    assert done.returncode == 0, done.stderr
    assert json.loads((run / "summary.json").read_text())["evaluation"]["mean_return"] >= 0.8
    rows = rollbus.lines(run / "metrics.jsonl")
    assert rows[0]["epsilon"] > rows[-1]["epsilon"] == pytest.approx(0.05)
    assert rows[0]["weight"] > rows[-1]["weight"] and rows[-1]["weight"] < 0.95
