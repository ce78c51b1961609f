"""Evaluations are exact lists of episodes, whatever the number of environments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from system_runner import RECIPES, Runner

from rollbus_core.rng import episode_seed

pytestmark = pytest.mark.timeout(600)
HALFCHEETAH = str(RECIPES / "halfcheetah_ppo.yaml")


def evaluated(rollbus: Runner, run: Path, *arguments: object) -> dict[str, Any]:
    done = rollbus("eval", str(run), *map(str, arguments), "--json", timeout=200)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_ten_episodes_three_successes(rollbus: Runner) -> None:
    """T16: ids 0, 4, 8 succeed in 5 steps, the others run into the limit of 100."""
    seeds = [episode_seed(3, i, evaluation=True) for i in range(10)]
    recipe = rollbus.folder / "count.yaml"
    recipe.write_text(
        f"""
run: {{total_steps: 256}}
env:
  {{name: toy, kind: counter, lengths: [1000], success_seeds: [{seeds[0]}, {seeds[4]}, {seeds[8]}],
   success_length: 5, time_limit: 100, num_envs: 8}}
algorithm: {{name: ppo, num_steps: 16, minibatches: 2}}
eval: {{seed: 3, episodes: 10, num_envs: 4}}
"""
    )
    run = rollbus.folder / "run"
    done = rollbus("train", str(recipe), "--run-dir", str(run))
    assert done.returncode == 0, done.stderr
    by_number = [evaluated(rollbus, run, "--num-envs", number) for number in (1, 3)]
    for result in by_number:
        episodes = result["episodes"]
        assert [e["id"] for e in episodes] == list(range(10)), "each once"
        assert [e["seed"] for e in episodes] == seeds
        assert [e["id"] for e in episodes if e["success"]] == [0, 4, 8]
        assert [e["length"] for e in episodes] == [5 if i in (0, 4, 8) else 100 for i in range(10)]
        assert result["success_rate"] == 0.3
        assert result["mean_return"] == pytest.approx((3 * 15 + 7 * 5050) / 10)
        assert result["ci95"] > 0
    assert by_number[0] == by_number[1]


@pytest.mark.long
def test_halfcheetah_is_the_same_with_one_and_eight_environments(rollbus: Runner) -> None:
    """1000 steps of chaotic dynamics: one bit of difference in one action would show."""
    pytest.importorskip("mujoco")
    run = rollbus.folder / "run"
    done = rollbus(
        "train", HALFCHEETAH, "run.total_steps=8192", "env.num_envs=4", "algorithm.num_steps=256",
        "algorithm.minibatches=8", "algorithm.epochs=2", "eval.episodes=1", "--run-dir", str(run),
        timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    results = []
    for mode in ("deterministic", "stochastic"):
        one, eight = (
            evaluated(rollbus, run, "--episodes", 8, "--num-envs", number, "--mode", mode)["episodes"]
            for number in (1, 8)
        )
        assert one == eight
        assert len({e["return"] for e in one}) == 8 and all(e["length"] == 1000 for e in one)
        results.append(one)
    assert results[0] != results[1]
