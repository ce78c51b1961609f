"""A deterministic run that is killed and resumed is the run that was not."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from system_kit import assert_same_weights, descendants, living, member
from system_runner import RECIPES, TINY, Runner, wait_for

pytestmark = pytest.mark.timeout(400)
#: Of times, machines and processes; everything else must be the same.
OF_THE_PROCESS = {"time", "version", "env_steps_per_s", "sample_s", "gather_s", "update_s", "publish_s"}
CARTPOLE = [
    str(RECIPES / "cartpole_ppo.yaml"),
    "stop_when.eval_return=null",
    "eval.every_steps=1000000",
    "eval.episodes=1",
]
#: Environment and batch: 30 updates, a checkpoint after 10.
TOY = [TINY, "run.total_steps=3840", "checkpoint.every_steps=1280", "checkpoint.keep=10"]
#: 100 updates: some are left when the first checkpoint was seen and its writer looked up.
LONGER = [*TOY, "run.total_steps=12800", "checkpoint.keep=20"]
GROUPS = [
    str(RECIPES / "digits_grpo.yaml"), "run.start_from=", "env.num_envs=32", "algorithm.group_size=4",
    "algorithm.num_groups=8", "run.total_steps=960", "checkpoint.every_steps=320", "checkpoint.keep=10",
    "eval.every_steps=1000000", "eval.episodes=1",
]  # fmt: skip
REAL = [*CARTPOLE, "run.total_steps=15360", "checkpoint.every_steps=5120", "checkpoint.keep=10"]
DETERMINISTIC = ["run.deterministic=true", "algorithm.max_lag=0", "checkpoint.every_s=0"]


def rows(rollbus: Runner, run: Path) -> list[dict[str, Any]]:
    """What was written of each update by the lineage that made it last, without what is of the process."""
    by_update = {row["update"]: row for row in rollbus.lines(run / "metrics.jsonl")}
    return [
        {key: value for key, value in by_update[update].items() if key not in OF_THE_PROCESS}
        for update in sorted(by_update)
    ]


@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(TOY, id="toy"),
        pytest.param(GROUPS, id="groups", marks=pytest.mark.long),
        pytest.param(REAL, id="cartpole", marks=pytest.mark.long),
    ],
)
def test_thirty_updates_and_ten_and_twenty(rollbus: Runner, recipe: list[str]) -> None:
    """kill -9 of everything after a checkpoint, then the same command again."""
    straight, broken = rollbus.folder / "straight", rollbus.folder / "broken"
    done = rollbus("train", *recipe, *DETERMINISTIC, "--run-dir", str(straight), timeout=200)
    assert done.returncode == 0, done.stderr
    process = rollbus.start("train", *recipe, *DETERMINISTIC, "--run-dir", str(broken))
    wait_for(lambda: saved(broken), 120, "a checkpoint")
    children = descendants(process.pid)
    for pid in (process.pid, *children):
        os.kill(pid, signal.SIGKILL)
    process.wait()
    wait_for(lambda: not living(children), 20, "the end of all processes")
    assert len(saved(broken)) < 3, "killed in the middle"
    done = rollbus("train", *recipe, *DETERMINISTIC, "--run-dir", str(broken), timeout=200)
    assert done.returncode == 0, done.stderr
    assert {row["version"].partition(".")[0] for row in rollbus.lines(broken / "metrics.jsonl")} == {"0", "1"}
    first, second = rows(rollbus, straight), rows(rollbus, broken)
    assert len(first) == len(second) == 30
    assert first == second
    assert_same_weights(straight, broken)


@pytest.mark.parametrize(
    "victim",
    [pytest.param(name, marks=pytest.mark.long) for name in ("learner-0", "hub-0", "actor-0")],
)
def test_whoever_dies_the_run_is_the_same(rollbus: Runner, victim: str) -> None:
    straight, broken = rollbus.folder / "straight", rollbus.folder / "broken"
    done = rollbus("train", *LONGER, *DETERMINISTIC, "--run-dir", str(straight), timeout=200)
    assert done.returncode == 0, done.stderr
    process = rollbus.start("train", *LONGER, *DETERMINISTIC, "--run-dir", str(broken))
    wait_for(lambda: saved(broken), 120, "a checkpoint")
    os.kill(member(rollbus, broken, victim)["pid"], signal.SIGKILL)
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 0 and f"{victim} ended by signal SIGKILL" in errors
    assert rows(rollbus, straight) == rows(rollbus, broken)
    assert_same_weights(straight, broken)


def saved(run: Path) -> list[str]:
    """Names of the checkpoints there are."""
    return [path.name for path in (run / "checkpoints").glob("0*")]
