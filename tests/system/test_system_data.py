"""From a script to a trained policy: collect, clone, evaluate, with the real command."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from system_kit import end, member
from system_runner import Runner, wait_for

pytestmark = pytest.mark.timeout(400)

RECIPE = """
run: {total_updates: 100}
env: {name: toy, kind: continuous}
algorithm: {name: sft}
data: {sources: [{path: demos}]}
eval: {episodes: 50}
"""


def collected(rollbus: Runner) -> tuple[Path, float]:
    """The recipe, with 20 episodes of the expert; what chance returns."""
    recipe = rollbus.folder / "r.yaml"
    recipe.write_text(RECIPE)
    returns = []
    for policy, out in (("script", "demos"), ("random", "chance")):
        done = rollbus("collect", str(recipe), "--policy", policy, "--episodes", "20", "--out", out, "--json")
        assert done.returncode == 0, done.stderr
        (made,) = json.loads(done.stdout)
        assert made["episodes"] == 20 and made["frames"] == 200
        returns.append(made["mean_return"])
    assert returns[0] == pytest.approx(-1.2) and returns[1] < -5
    return recipe, returns[1]


@pytest.mark.long
def test_a_cloned_policy_is_nearly_as_good_as_its_expert(rollbus: Runner) -> None:
    recipe, chance = collected(rollbus)
    run = rollbus.folder / "run"
    done = rollbus("train", str(recipe), "--run-dir", str(run), timeout=300)
    assert done.returncode == 0, done.stderr
    summary = json.loads((run / "summary.json").read_text())
    assert (
        summary["updates"] == 100 and summary["stopped_by"] == "total_updates" and summary["env_steps"] == 0
    )
    assert summary["mean_return"] > -1.5 > chance and summary["evaluation"]["success_rate"] == 1.0
    rows = rollbus.lines(run / "metrics.jsonl")
    assert rows[-1]["cloning_loss"] < rows[0]["cloning_loss"] - 1.0
    held_back = [row["validation_loss"] for row in rows if "validation_loss" in row]
    assert len(held_back) == 10 and held_back[-1] < held_back[0] - 1.0
    started = {json.loads(line)["service"] for path in (run / "logs").glob("*.log")
               for line in path.read_text().splitlines() if line.startswith("{")}  # fmt: skip
    assert not [name for name in started if "hub-" in name or "actor-" in name], started


@pytest.mark.long
def test_a_killed_learner_goes_on_with_the_same_data(rollbus: Runner) -> None:
    recipe, _ = collected(rollbus)
    run = rollbus.folder / "run"
    process = rollbus.start(
        "train", str(recipe), "run.total_updates=100000", "checkpoint.every_updates=10", "--run-dir", str(run)
    )

    def updates() -> int:
        rows = rollbus.lines(run / "metrics.jsonl")
        return int(rows[-1]["update"]) if rows else 0

    wait_for(lambda: updates() >= 20, 150, "20 updates")
    os.kill(int(member(rollbus, run, "learner-0")["pid"]), signal.SIGKILL)
    before = updates()
    wait_for(lambda: updates() >= before + 20, 150, "20 more updates")
    versions = {row["version"].split(".")[0] for row in rollbus.lines(run / "metrics.jsonl")}
    assert versions == {"0", "1"}
    end(process)
    manifest = json.loads((run / "checkpoints/last/manifest.json").read_text())
    assert set(manifest["applied"]) == {"demos", "validation"} and manifest["applied"]["demos"] >= before


@pytest.mark.long
@pytest.mark.parametrize("policy", ["act", "flow"])
def test_what_plans_of_several_actions_did_can_be_cloned(policy: str, rollbus: Runner) -> None:
    """The clone of an expert collects, executing 3 of 4 actions, and is cloned in turn."""
    recipe, chance = collected(rollbus)
    settings = [f"policy.name={policy}", "policy.chunk=4", "policy.execute=3", "eval.episodes=10"]
    for name, source in (("first", "demos"), ("second", "own")):
        done = rollbus(
            "train",
            str(recipe),
            *settings,
            f"data.sources=[{{path: {source}}}]",
            "--run-dir",
            name,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        done = rollbus("collect", str(recipe), "--policy", name, "--episodes", "20", "--out",
                       {"first": "own", "second": "last"}[name], "--json")  # fmt: skip
        assert done.returncode == 0, done.stderr
        (made,) = json.loads(done.stdout)
        assert made["episodes"] == 20 and made["frames"] == 200
        assert made["mean_return"] > chance / 2
