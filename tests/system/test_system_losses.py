"""Processes that are killed, interrupted or fail: training goes on, or ends and leaves nothing."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from system_kit import (
    PATIENCE_S,
    audit,
    descendants,
    end,
    living,
    long_run,
    member,
    runtime_folders,
    services_of,
    wait_for_steps,
)
from system_runner import Runner, wait_for

pytestmark = pytest.mark.timeout(400)


def episodes(run: Path) -> Iterator[int]:
    """Ids of the episodes that were learned from."""
    for line in (run / "audit" / "applied.jsonl").read_text().splitlines():
        yield from (episode for row in json.loads(line)["rows"] for episode, _, _ in row)


@pytest.mark.parametrize("placement", ["inline", "workers"])
def test_a_killed_hub_comes_back_with_new_episodes(rollbus: Runner, placement: str) -> None:
    run = rollbus.folder / "run"
    process = long_run(rollbus, run, f"env.placement={placement}")
    wait_for_steps(rollbus, run, 2000, process)
    victim = member(rollbus, run, "hub-0")["pid"]
    os.kill(victim, signal.SIGKILL)
    wait_for(
        lambda: any(m["name"] == "hub-0" and m["pid"] != victim for m in rollbus.members(run)),
        PATIENCE_S, "another hub process",
    )  # fmt: skip
    wait_for_steps(rollbus, run, 3000, process)
    errors = end(process)
    assert "hub-0 ended by signal SIGKILL" in errors
    total, problems = audit(run)
    assert total > 5000 and not problems, problems[:5]
    assert {episode >> 48 for episode in episodes(run)} == {0, 1}, "both incarnations were learned from"


def test_a_killed_broker_adopts_what_it_had(rollbus: Runner) -> None:
    run = rollbus.folder / "run"
    process = long_run(rollbus, run)
    before = wait_for_steps(rollbus, run, 2000, process)
    pids = {m["name"]: m["pid"] for m in rollbus.members(run)}
    os.kill(pids["broker-0"] if "broker-0" in pids else broker_pid(run), signal.SIGKILL)
    wait_for_steps(rollbus, run, 3000, process)
    after = {m["name"]: m["pid"] for m in rollbus.members(run)}
    for name in ("hub-0", "actor-0", "learner-0"):
        assert after[name] == pids[name], f"{name} lives on"
    assert json.loads((run / "store" / "boot.json").read_text())["boot"] == 2
    end(process)
    total, problems = audit(run)
    assert total > before and not problems, problems[:5]
    updates = [row["update"] for row in rollbus.lines(run / "metrics.jsonl")]
    assert updates == list(range(1, len(updates) + 1)), "no update is missing or made twice"


def test_damage_in_the_middle_of_the_log_costs_what_was_hit_only(rollbus: Runner) -> None:
    """What is lost is named, what is intact is learned once, numbers go on in another range."""
    run = rollbus.folder / "run"
    process = long_run(rollbus, run)
    wait_for_steps(rollbus, run, 2000, process)
    broker = member(rollbus, run, "broker-0")["pid"]
    os.kill(process.pid, signal.SIGSTOP)
    os.kill(broker, signal.SIGKILL)
    log = run / "store" / "log"
    data = bytearray(log.read_bytes())
    place = len(data) * 3 // 8
    data[place : place + 4] = bytes(byte ^ 0xFF for byte in data[place : place + 4])
    log.write_bytes(data)
    os.kill(process.pid, signal.SIGCONT)
    wait_for_steps(rollbus, run, 2000, process)
    end(process)
    assert (run / "store" / "log.damaged-1").read_bytes() == bytes(data)
    done = rollbus("audit", str(run), "--json")
    (verdict,) = json.loads(done.stdout)
    assert done.returncode == 0 and verdict["good"], verdict
    assert verdict["applied_chunks"] > 20 and verdict["duplicated"] == verdict["unexplained"] == 0
    assert set(verdict["dropped"]) <= {"damaged"} and verdict["dropped"].get("damaged", 0) <= 2
    assert max(line["sequence"] for line in rollbus.lines(run / "audit" / "applied.jsonl")) > 2 << 32
    updates = [row["update"] for row in rollbus.lines(run / "metrics.jsonl")]
    assert updates == list(range(1, len(updates) + 1)), "no update is missing or made twice"
    warned = [
        line for path in run.glob("logs/broker*") for line in path.read_text().splitlines()
        if "store log damaged" in line
    ]  # fmt: skip
    assert warned and str(log) in warned[0] and "lost_bytes" in warned[0]


def broker_pid(run: Path) -> int:
    return next(pid for pid, command in services_of(run) if " broker " in f"{command} ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_however_the_launcher_ends_nothing_is_left(rollbus: Runner, number: signal.Signals) -> None:
    run = rollbus.folder / "run"
    process = long_run(rollbus, run, "env.placement=workers", "env.workers=2")
    wait_for_steps(rollbus, run, 500, process)
    children = descendants(process.pid)
    assert len(children) >= 6, "broker, hub, actor, learner and two workers"
    began = time.monotonic()
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does
    else:
        process.send_signal(number)
    process.communicate(timeout=PATIENCE_S)
    wait_for(lambda: not living(children), PATIENCE_S, "the end of all processes")
    assert time.monotonic() - began < 20
    assert services_of(run) == []
    if number == signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
    else:
        assert process.returncode == 130
        assert (run / "checkpoints" / "last").exists()
    assert runtime_folders(rollbus) == []


PLUGIN = """
from dataclasses import dataclass
from rollbus_envs import toy

needs = []


@dataclass
class Config:
    every_episode: bool = False
    at: int = 50


def make(config, num_rows):
    env = toy.make(toy.Config(kind="counter", lengths=[60]), num_rows)
    plain, done = env.step, [0]

    def step(rows, actions, observe):
        done[0] += 1
        if done[0] == config.at or (done[0] > config.at and not config.every_episode):
            if config.every_episode:
                done[0] = 0
            raise RuntimeError("the gripper is stuck")
        return plain(rows, actions, observe)

    env.step = step
    return env
"""


@pytest.mark.parametrize("placement", ["inline", "workers"])
def test_an_exception_of_the_environment_reaches_the_terminal(rollbus: Runner, placement: str) -> None:
    """Service, stage and traceback, from a plug-in in the working folder."""
    folder = rollbus.folder / "mine"
    folder.mkdir()
    (folder / "stuck.py").write_text(PLUGIN)
    recipe = rollbus.folder / "stuck.yaml"
    recipe.write_text(
        "run: {total_steps: 100000}\nenv: {name: mine.stuck, num_envs: 8}\n"
        "algorithm: {name: ppo, num_steps: 16, minibatches: 2}\n"
    )
    run = rollbus.folder / "run"
    done = rollbus("train", str(recipe), f"env.placement={placement}", "--run-dir", str(run))
    assert done.returncode == 2, done.stderr
    assert re.search(r"hub(\+actor)?-0(, | failed in )stage", done.stderr)
    assert "RuntimeError: the gripper is stuck" in done.stderr
    assert "stuck.py" in done.stderr and done.stderr.count("Traceback") == 1
    assert runtime_folders(rollbus) == []


def test_an_exception_now_and_then_is_shown_while_training_goes_on(rollbus: Runner) -> None:
    folder = rollbus.folder / "mine"
    folder.mkdir()
    (folder / "stuck.py").write_text(PLUGIN)
    recipe = rollbus.folder / "stuck.yaml"
    recipe.write_text(
        "run: {total_steps: 12800}\nenv: {name: mine.stuck, num_envs: 8, every_episode: true, at: 150}\n"
        "algorithm: {name: ppo, num_steps: 16, minibatches: 2}\n"
    )
    command = Path(rollbus.command()[0]).with_name("rollbus")
    rollbus.command = lambda *arguments: [str(command), *map(str, arguments)]  # type: ignore[method-assign]
    done = rollbus("train", str(recipe), "eval.episodes=1", "--run-dir", str(rollbus.folder / "run"))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("RuntimeError: the gripper is stuck") <= 3, "told once, not at every episode"
    assert re.search(r"hub(\+actor)?-0, stage", done.stderr) and "stuck.py" in done.stderr
