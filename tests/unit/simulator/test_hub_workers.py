"""A worker process that hangs, or ends, is started again within a budget, and people are told."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hub_kit import Actor, Log
from test_hub_peers import until

from rollbus_core.config.models import EnvConfig
from rollbus_simulator import workers
from rollbus_simulator.episodes import TrainingEpisodes
from rollbus_simulator.failures import spans
from rollbus_simulator.hub import Hub
from rollbus_wire.errors import RollbusError
from rollbus_wire.link import local_pair
from rollbus_wire.polling import Poller
from rollbus_wire.zmq_link import ZmqLink

MY_ENV = """
import os, time
import gymnasium
import numpy as np

FOLDER = os.path.dirname(os.path.abspath(__file__))


def first():
    try:
        os.mkdir(os.path.join(FOLDER, "hung"))
        return True
    except FileExistsError:
        return False


class Mine(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, how):
        self.how, self.steps = how, 0
        if how == "hang when made":
            time.sleep(1000)

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.how == "hang always" or self.how == "hang once" and first():
            wait_for_the_gripper()
        if self.how == "raise":
            raise RuntimeError("joint 3 exploded")
        return np.zeros(2, np.float32), 1.0, self.steps >= 5, False, {}


def wait_for_the_gripper():
    time.sleep(1000)
"""
HANGS_AT = 1 + MY_ENV.splitlines().index("    time.sleep(1000)")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    """Makes a hub with workers that run ``MY_ENV`` failing in one way, and its actor."""
    (tmp_path / "my_env.py").write_text(MY_ENV)
    hubs: list[Hub] = []

    def make(how: str, restarts: int = 5) -> tuple[Hub, Actor]:
        command = (
            f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
            "from rollbus_envs.worker import main; sys.exit(main())"
        )
        settings = f'{{"kwargs": {{"how": "{how}"}}}}'
        mine, theirs = local_pair()
        hub = Hub(
            "hub-0", 0, EnvConfig(placement="workers", workers=2, step_timeout_s=0.5), num_rows=4,
            num_slices=1, episodes=TrainingEpisodes(1), data_links=[mine], log=Log(),
            worker_command=lambda endpoint, rows: [
                sys.executable, "-c", command, "my_env:Mine", settings, endpoint, "--num-rows", str(rows)
            ],
            peer_link=ZmqLink.bind(f"ipc://{tmp_path}/peers"), row_offset=8, worker_restarts=restarts,
        )  # fmt: skip
        hubs.append(hub)
        hub.start(Poller())
        actor = Actor(theirs)
        actor.attach("hub-0/0")
        return hub, actor

    yield make
    for hub in hubs:
        hub.stop()


def answered(actor: Actor) -> bool:
    for tick in actor.ticks():
        actor.act(tick)
    return True


def test_a_worker_that_hangs_is_killed_and_starts_again(start: Any) -> None:
    hub, actor = start("hang once")
    pids = {process.pid for process in hub._workers.processes}
    until(hub, lambda: answered(actor) and hub._peers.failure, 60)
    until(hub, lambda: answered(actor) and hub.stats()["peers"] == 2, 60)
    whole = hub.counters.episodes + 8
    until(hub, lambda: answered(actor) and hub.counters.episodes >= whole, 60)
    assert hub.counters.peers_lost == 1 and hub.counters.interrupted >= 2
    assert len(pids & {process.pid for process in hub._workers.processes}) == 1
    told = hub._peers.failure
    assert f"hung in wait_for_the_gripper() of {hub._peer_link.endpoint[6:-6]}/my_env.py:{HANGS_AT}" in told
    for words in ["environment worker", "no outcome within 0.5 s (env.step_timeout_s)", "was killed"]:
        assert words in told
    assert "rows 8 to 9" in told or "rows 10 to 11" in told
    assert "it starts again, restart 1 of at most 5 within 10 minutes (deploy.restarts)" in told


def test_workers_that_hang_again_and_again_end_the_hub(start: Any) -> None:
    hub, actor = start("hang always", restarts=1)
    with pytest.raises(RollbusError) as raised:
        until(hub, lambda: not answered(actor), 60)
    for words in ["hung in wait_for_the_gripper()", "used up its 1 restarts", "deploy.restarts"]:
        assert words in str(raised.value)


def test_a_worker_whose_environment_always_fails_says_why_it_ended(start: Any) -> None:
    hub, actor = start("raise", restarts=0)
    with pytest.raises(RollbusError) as raised:
        until(hub, lambda: not answered(actor), 60)
    assert "was given up: 5 failures in a row" in str(raised.value)
    assert "joint 3 exploded" in str(raised.value)


def test_a_worker_that_does_not_dial_in_is_told_of(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "LATE_S", 1.0)
    hub, _ = start("hang when made")
    until(hub, lambda: hub._peers.failure, 20)
    assert "has not dialled in for 1 s" in hub._peers.failure and "2 rows" in hub._peers.failure
    began = time.monotonic()
    hub.stop()
    assert time.monotonic() - began < 4


def test_rows_are_told_as_spans() -> None:
    assert spans([3]) == "row 3" and spans([0, 1, 2, 8]) == "rows 0 to 2, 8"
    assert spans([0, 2, 4, 6, 8]) == "rows 0, 2, 4, 6 and others"
