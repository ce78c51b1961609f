"""Large observations through memory that hub and actor both map."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollbus_actor.actor import Actor
from rollbus_actor.engines.base import Forward
from rollbus_core.config.models import ActorConfig, EnvConfig
from rollbus_core.version import Version
from rollbus_policies.base import Act, PolicySpec
from rollbus_simulator.episodes import TrainingEpisodes
from rollbus_simulator.hub import Hub
from rollbus_wire.env import Env, StepResult
from rollbus_wire.polling import Poller
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec
from rollbus_wire.zmq_link import ZmqLink

ROWS, SHAPE = 3, (200, 200, 3)


class Numbers(Env):
    """Row r shows 10 r + steps, everywhere; episodes last 4 steps."""

    num_rows = ROWS
    spec = EnvSpec("numbers", {"image": ArraySpec("uint8", SHAPE)}, ActionSpec("discrete", num=[256]))

    def __init__(self) -> None:
        self.steps = np.zeros(ROWS, np.int64)

    def observe(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        value = (10 * rows + self.steps[rows]).astype(np.uint8)
        return {"image": np.broadcast_to(value[:, None, None, None], (len(rows), *SHAPE)).copy()}

    def reset(self, rows: np.ndarray, seeds: np.ndarray, options: Any) -> dict[str, np.ndarray]:
        self.steps[rows] = 0
        return self.observe(rows)

    def step(self, rows: np.ndarray, actions: np.ndarray, observe: bool) -> StepResult:
        # The policy answers with what it saw.
        right = actions == 10 * rows + self.steps[rows]
        self.steps[rows] += 1
        return StepResult(
            self.observe(rows), right.astype(np.float32), self.steps[rows] >= 4, np.zeros(len(rows), bool)
        )


class Echo:
    """The action is the value that all pixels of the row have."""

    spec = PolicySpec(action=("int64", ()))
    version = Version(0, 1)

    def act(self, obs: Any, state: Any, ask: Any, seeds: np.ndarray) -> Forward:
        image = obs["image"].reshape(len(seeds), -1)
        assert (image == image[:, :1]).all()
        action = image[:, 0].astype(np.int64)
        return Forward(Act(action, action, None, {}), self.version)

    def set_weights(self, version: Version, tensors: Any) -> None:
        raise NotImplementedError


class Pair:
    """A hub and actors that reach it over ZeroMQ."""

    def __init__(self, folder: Path, hub_memory: Path | None) -> None:
        self.endpoint = f"ipc://{folder}/d"
        self.hub = Hub(
            "hub-0", 0, EnvConfig(num_envs=ROWS, num_slices=1), num_rows=ROWS, num_slices=1,
            episodes=TrainingEpisodes(1), data_links=[ZmqLink.bind(self.endpoint)],
            make_env=lambda _: Numbers(), memory=hub_memory, record=False,
        )  # fmt: skip
        self.hub.start(Poller())

    def actor(self, memory: Path | None) -> Actor:
        actor = Actor(
            "actor-0", ActorConfig(), engine=Echo(), policy_spec=Echo.spec, memory=memory,
            connect=lambda _: ZmqLink.connect(self.endpoint),
        )  # fmt: skip
        actor.start(Poller())
        actor.take("hub-0/0", self.endpoint)
        return actor

    def run(self, actor: Actor, num_passes: int) -> None:
        deadline = time.monotonic() + 20
        while actor.stats.num_passes < num_passes:
            assert time.monotonic() < deadline
            if not self.hub.poll() | actor.poll():
                time.sleep(0.0005)


def slabs(folder: Path) -> list[Path]:
    return sorted(folder.glob("observations-*"))


@pytest.mark.parametrize("elsewhere", [False, True], ids=["shared", "frames"])
def test_observations_arrive_whole(tmp_path: Path, elsewhere: bool) -> None:
    other = tmp_path / "other"
    other.mkdir()
    pair = Pair(tmp_path, tmp_path)
    actor = pair.actor(other if elsewhere else tmp_path)
    pair.run(actor, 12)
    session = actor.holdings.sessions["hub-0/0"]
    assert (session.shared is None) == elsewhere and len(slabs(tmp_path)) == (not elsewhere)
    # Every action was what the row showed: each step of the 4-step episodes was rewarded.
    assert list(pair.hub.counters.returns) == [4.0] * pair.hub.counters.episodes
    assert pair.hub.counters.episodes >= ROWS
    actor.stop()
    pair.hub.stop()
    assert not slabs(tmp_path) and not list(tmp_path.glob("nonce-*"))


def test_each_fence_has_its_own_slab(tmp_path: Path) -> None:
    pair = Pair(tmp_path, tmp_path)
    first = pair.actor(tmp_path)
    pair.run(first, 3)
    tick = first.holdings.sessions["hub-0/0"].tick
    while tick is None:
        pair.hub.poll()
        first.holdings.poll(0.0)
        tick = first.holdings.sessions["hub-0/0"].tick
    (old,), before = slabs(tmp_path), tick.obs["image"].copy()
    second = pair.actor(tmp_path)
    pair.run(second, 6)
    (new,) = slabs(tmp_path)
    assert new != old and (tick.obs["image"] == before).all()
    assert list(pair.hub.counters.returns) == [4.0] * pair.hub.counters.episodes
    second.stop()
    pair.hub.stop()


def test_a_slab_that_is_gone_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(tmp_path, tmp_path)
    actor = pair.actor(tmp_path)
    offer = pair.hub._grants._memory.offer

    def vanishing(*arguments: Any) -> Any:
        shared = offer(*arguments)
        for path in slabs(tmp_path):
            path.unlink()
        return shared

    monkeypatch.setattr(pair.hub._grants._memory, "offer", vanishing)
    pair.run(actor, 5)
    assert actor.holdings.sessions["hub-0/0"].shared is None and pair.hub.counters.episodes
    assert set(pair.hub.counters.returns) == {4.0}
    actor.stop()
    pair.hub.stop()


def test_a_hub_unlinks_what_an_earlier_process_left(tmp_path: Path) -> None:
    mine, others = tmp_path / f"observations-{7}", tmp_path / f"observations-{1 << 40 | 7}"
    for path in (mine, others):
        path.write_bytes(b"x")
    Pair(tmp_path, tmp_path).hub.stop()
    assert slabs(tmp_path) == [others]
