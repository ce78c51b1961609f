"""What episodes begin with, in real processes: training, evaluation, and a hub that is killed."""

from __future__ import annotations

import json
import os
import signal

import pytest
from system_kit import PATIENCE_S, end, member
from system_runner import RECIPES, Runner, wait_for

pytestmark = pytest.mark.timeout(400)

#: The toy's option says which of the three lengths an episode has.
RECIPE = """
run: {total_steps: 2560}
env:
  {name: toy, kind: counter, lengths: [5, 3, 8], num_envs: 8, hubs: 2,
   options: {name: random, values: {episode: {integer: [0, 1]}}}}
algorithm: {name: ppo, num_steps: 16, minibatches: 2}
eval: {episodes: 4, num_envs: 4, options: {name: fixed, values: {episode: 2}}}
deploy: {layout: stated}
"""


def test_training_and_evaluation_have_options_of_their_own(rollbus: Runner) -> None:
    recipe, run = rollbus.folder / "r.yaml", rollbus.folder / "run"
    recipe.write_text(RECIPE)
    done = rollbus("train", str(recipe), "--run-dir", str(run))
    assert done.returncode == 0, done.stderr
    for index in (0, 1):
        lines = rollbus.lines(run / "episodes" / f"hub-{index}.jsonl")
        assert len(lines) > 50
        assert {(line["options"]["episode"], line["length"]) for line in lines} == {(0, 5), (1, 3)}
        assert {line["return"] for line in lines} == {15.0, 6.0}
    summary = json.loads((run / "summary.json").read_text())
    assert summary["evaluation"]["mean_length"] == 8.0 and summary["evaluation"]["mean_return"] == 36.0


@pytest.mark.long
def test_levels_survive_the_hub(rollbus: Runner) -> None:
    """The hub is killed in a curriculum: the next one goes on at the level that was reached."""
    run = rollbus.folder / "run"
    process = rollbus.start(
        "train", str(RECIPES / "toy_sparse_reach_curriculum.yaml"), "run.total_steps=100000000",
        "checkpoint.every_s=1", "deploy.layout=stated", "--run-dir", str(run),
    )  # fmt: skip

    kept, record = (run / "episodes" / f"hub-0.{kind}" for kind in ("json", "jsonl"))

    def level() -> int:
        return int(json.loads(kept.read_text())["state"]["level"]) if kept.exists() else 0

    wait_for(lambda: (run / "checkpoints" / "last").exists() and level() >= 2, 2 * PATIENCE_S, "level 2")
    pid, reached = member(rollbus, run, "hub-0")["pid"], level()
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: member(rollbus, run, "hub-0")["pid"] != pid, PATIENCE_S, "another hub")
    known = len(rollbus.lines(record))
    wait_for(lambda: len(rollbus.lines(record)) > known + 200, PATIENCE_S, "episodes of the other hub")
    later = rollbus.lines(record)[known:]
    assert level() >= reached
    assert sum(line["level"] >= reached for line in later) > 0.6 * len(later)  # the rest rehearses
    end(process)
