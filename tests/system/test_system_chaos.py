"""The real command under faults: nothing is lost or learned from twice, and training goes on."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from system_kit import PATIENCE_S, end, long_run, member, wait_for_steps
from system_runner import RECIPES, TINY, Runner, wait_for

pytestmark = pytest.mark.timeout(400)


def chaos(rollbus: Runner, recipe: str, *arguments: str, minutes: float, seed: int) -> dict[str, Any]:
    """The report; the command must have passed."""
    done = rollbus(
        "chaos", recipe, *arguments, "--minutes", str(minutes), "--seed", str(seed), "--json",
        timeout=minutes * 60 + 300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return dict(json.loads(done.stdout))


def assert_nothing_lost(run: Path, rollbus: Runner) -> dict[str, Any]:
    """The verdict of the audit program on ``run``."""
    done = rollbus("audit", str(run), "--json")
    (verdict,) = json.loads(done.stdout)
    assert done.returncode == 0 and verdict["good"], verdict
    assert verdict["applied_steps"] > 0 and verdict["acknowledged_chunks"] > 0
    return dict(verdict)


def test_a_minute_of_everything(rollbus: Runner) -> None:
    """Limits are for a slow machine that does other things as well."""
    report = chaos(rollbus, TINY, "--limit", "30", minutes=1.0, seed=7)
    assert len(report["injected"]) >= 5 and len({fault["kind"] for fault in report["injected"]}) >= 5
    assert report["audit"]["duplicated"] == report["audit"]["unexplained"] == 0
    assert report["audit"]["applied_chunks"] > 0 and report["left_over"] == []


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [7, 8, 9])
def test_ten_minutes_of_everything_and_cartpole_is_solved(rollbus: Runner, seed: int) -> None:
    report = chaos(rollbus, str(RECIPES / "cartpole_ppo.yaml"), minutes=10.0, seed=seed)
    assert len(report["injected"]) >= 60 and report["kinds"] >= 8
    assert report["best_return"] >= report["wanted_return"] == 475


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_ten_minutes_of_everything_off_policy(rollbus: Runner) -> None:
    report = chaos(rollbus, str(RECIPES / "pendulum_sac.yaml"), minutes=10.0, seed=7)
    assert len(report["injected"]) >= 60 and report["audit"]["applied_chunks"] > 0


def broker_kills(rollbus: Runner, num: int) -> None:
    """Kill the broker ``num`` times while 4 actors push and the learner pulls."""
    run = rollbus.folder / "run"
    process = long_run(
        rollbus, run, "actor.count=4", "env.num_envs=16", "env.num_slices=8", "env.hubs=2",
        "deploy.restarts=100", "checkpoint.every_s=2",
    )  # fmt: skip
    for number in range(num):
        wait_for_steps(rollbus, run, 500, process)
        wait_for(lambda: member_or_none(rollbus, run, "broker-0"), PATIENCE_S, "the broker")
        os.kill(member(rollbus, run, "broker-0")["pid"], signal.SIGKILL)
        time.sleep(0.02 * (number % 5))
    wait_for_steps(rollbus, run, 1000, process)
    end(process)
    verdict = assert_nothing_lost(run, rollbus)
    assert verdict["dropped"] == {}, "the learner lived on: every acknowledged chunk was applied"
    assert json.loads((run / "store" / "boot.json").read_text())["boot"] == num + 1


def member_or_none(rollbus: Runner, run: Path, name: str) -> dict[str, Any] | None:
    return next((m for m in rollbus.members(run) if m["name"] == name), None)


def test_no_acknowledged_chunk_is_lost_with_the_broker(rollbus: Runner) -> None:
    broker_kills(rollbus, 3)


@pytest.mark.long
def test_no_acknowledged_chunk_is_lost_with_twenty_brokers(rollbus: Runner) -> None:
    broker_kills(rollbus, 20)
