"""A service that goes silent is told of with its stage and its stack; ends are bounded, whatever hangs."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest
from system_kit import (
    PATIENCE_S,
    descendants,
    end,
    living,
    long_run,
    member,
    runtime_folders,
    wait_for_steps,
)
from system_runner import Runner, wait_for

pytestmark = pytest.mark.timeout(400)
STUCK = """
import time
from dataclasses import dataclass
from rollbus_envs import toy

needs = []


@dataclass
class Config:
    at: int = 200


def make(config, num_rows):
    env = toy.make(toy.Config(kind="counter", lengths=[60]), num_rows)
    plain, done = env.step, [0]

    def step(rows, actions, observe):
        done[0] += 1
        if done[0] > config.at:
            wait_for_the_gripper()
        return plain(rows, actions, observe)

    env.step = step
    return env


def wait_for_the_gripper():
    time.sleep(600)
"""


def test_a_silent_service_shows_its_stage_and_where_it_is(rollbus: Runner) -> None:
    folder = rollbus.folder / "mine"
    folder.mkdir()
    (folder / "stuck.py").write_text(STUCK)
    recipe, run = rollbus.folder / "stuck.yaml", rollbus.folder / "run"
    recipe.write_text(
        "run: {total_steps: 100000}\nenv: {name: mine.stuck, num_envs: 8, step_timeout_s: 1.0}\n"
        "algorithm: {name: ppo, num_steps: 16, minibatches: 2}\ndeploy: {layout: stated}\n"
    )
    process = rollbus.start("train", str(recipe), "--run-dir", str(run))
    wait_for(lambda: state(rollbus, run, "hub-0") == "lost", PATIENCE_S, "the hub is lost")
    wait_for(lambda: (run / "logs" / "hub-0.stack").stat().st_size, 20, "its stack")
    shown = rollbus("ps", str(run)).stdout
    assert "hub-0 is lost: silent for" in shown and "in stage" in shown
    assert "wait_for_the_gripper" in shown and "stuck.py" in shown
    time.sleep(1.0)
    children = descendants(process.pid)
    began = time.monotonic()
    errors = end(process)
    assert time.monotonic() - began < 20, "the hub hangs for good and is killed"
    assert "hub-0 is lost" in errors and "wait_for_the_gripper" in errors
    assert living(children) == [] and runtime_folders(rollbus) == []


def state(rollbus: Runner, run: Path, name: str) -> str:
    return next((m["state"] for m in rollbus.members(run) if m["name"] == name), "")


def test_a_half_open_actor_is_lost_replaced_and_told_to_rejoin(rollbus: Runner) -> None:
    """T12: SIGSTOP, so that its connections stay up."""
    run = rollbus.folder / "run"
    process = long_run(rollbus, run, "actor.count=2", "env.num_slices=4", "env.num_envs=16")
    wait_for_steps(rollbus, run, 1000, process)
    wait_for(lambda: member(rollbus, run, "actor-0")["slices"], PATIENCE_S, "it holds slices")
    victim = member(rollbus, run, "actor-0")["pid"]
    os.kill(victim, signal.SIGSTOP)
    wait_for(lambda: state(rollbus, run, "actor-0") == "lost", PATIENCE_S, "it is lost")
    silent_s = float(re.findall(r"silent for ([\d.]+) s", member(rollbus, run, "actor-0")["failure"])[0])
    assert silent_s < 3.0 + 2.0 + 1.0, "lost_after_s, the stage's deadline, and some"
    wait_for(lambda: len(member(rollbus, run, "actor-1")["slices"]) == 4, PATIENCE_S, "its slices move")
    wait_for_steps(rollbus, run, 1000, process)
    os.kill(victim, signal.SIGCONT)
    wait_for(lambda: state(rollbus, run, "actor-0") == "ready", PATIENCE_S, "it rejoins")
    wait_for(lambda: member(rollbus, run, "actor-0")["slices"], PATIENCE_S, "it gets slices again")
    wait_for_steps(rollbus, run, 1000, process)
    errors = end(process)
    assert "actor-0 is lost" in errors and "stands still (SIGSTOP)" in errors
    done = rollbus("audit", str(run), "--json")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "name",
    ["broker-0", *(pytest.param(each, marks=pytest.mark.long) for each in ("hub-0", "actor-0", "learner-0"))],
)
def test_sigterm_ends_each_service_under_load_within_five_seconds(rollbus: Runner, name: str) -> None:
    run = rollbus.folder / "run"
    process = long_run(rollbus, run, "env.placement=workers", "env.workers=2")
    wait_for_steps(rollbus, run, 500, process)
    victim = member(rollbus, run, name)["pid"]
    children = descendants(victim)
    os.kill(victim, signal.SIGTERM)
    began = time.monotonic()
    wait_for(lambda: not living([victim, *children]), 5.0, f"the end of {name}")
    assert time.monotonic() - began < 5.0
    end(process)
    assert runtime_folders(rollbus) == []


@pytest.mark.parametrize("name", ["learner-0", pytest.param("broker-0", marks=pytest.mark.long)])
def test_what_hangs_for_good_is_killed_and_begins_anew(rollbus: Runner, name: str) -> None:
    """And nobody can be a second one of the same name meanwhile."""
    run = rollbus.folder / "run"
    process = long_run(rollbus, run, "deploy.hung_after_s=1", "run.audit=true")
    wait_for_steps(rollbus, run, 500, process)
    second = rollbus("serve", "actor", "--run-dir", str(run))
    pid = member(rollbus, run, "actor-0")["pid"]
    assert (
        second.returncode == 2
        and f"actor-0 of the run in {run} runs already, as process {pid}" in second.stderr
    )
    victim = member(rollbus, run, name)["pid"]
    os.kill(victim, signal.SIGSTOP)
    wait_for(lambda: not living([victim]), PATIENCE_S, "it is killed")
    wait_for_steps(rollbus, run, 1000, process)
    assert member(rollbus, run, name)["pid"] != victim and member(rollbus, run, "actor-0")["pid"] == pid
    errors = end(process)
    assert (
        f"{name} hangs: it lives, but was lost for more than 1 s (deploy.hung_after_s); it is killed"
        in errors
    )
    assert rollbus("audit", str(run)).returncode == 0 and runtime_folders(rollbus) == []
