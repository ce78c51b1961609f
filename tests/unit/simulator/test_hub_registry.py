"""The hub as a member: incarnation, slices that come and go, numbers."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hub_kit import Actor, Log, Script, attached, make_hub, play

from rollbus_core.config.models import EnvConfig
from rollbus_core.rng import episode_id
from rollbus_core.service import run
from rollbus_simulator.counters import Counters, Rates
from rollbus_simulator.episodes import TrainingEpisodes
from rollbus_simulator.hub import WITHDRAW_S, Hub
from rollbus_wire.errors import ConfigError
from rollbus_wire.link import LocalLink, local_pair
from rollbus_wire.messages import (
    Attached,
    Detached,
    Goodbye,
    Heartbeat,
    Leave,
    Message,
    Register,
    Registered,
    SlicesChanged,
    Tick,
)
from rollbus_wire.peer import Peer
from rollbus_wire.polling import Poller, drain
from rollbus_wire.spec import EnvSpec


class Clock:
    """Time that a test moves."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def member_hub(placement: str = "inline", num_rows: int = 1):  # type: ignore[no-untyped-def]
    """(hub, actor, the registry's end, the peers' end, clock)."""
    data, theirs = local_pair()
    mine, registry = local_pair()
    peers, peer_end = local_pair()
    clock = Clock()
    hub = Hub(
        "hub-3", 3, EnvConfig(placement=placement), num_rows=num_rows, num_slices=1,  # type: ignore[arg-type]
        episodes=TrainingEpisodes(1, 40), data_links=[data], row_offset=40, make_env=Script,
        peer_link=peers if placement == "dial_in" else None, registry=mine, endpoint="ipc:///x",
        log=Log(), clock=clock,
    )  # fmt: skip
    hub.start(Poller())
    return hub, Actor(theirs), registry, peer_end, clock


def told(registry: LocalLink, kind: type) -> list[Message]:
    return [e.message for e in drain(registry) if isinstance(e.message, kind)]


def test_episodes_begin_with_the_incarnation() -> None:
    hub, actor, registry, _, _ = member_hub()
    hub.poll()
    register = told(registry, Register)[0]
    assert isinstance(register, Register) and (register.role, register.name) == ("hub", "hub-3")
    attached(hub, actor, "hub-3/0")
    assert not [m for m in actor.got if isinstance(m, Tick)]
    registry.send(Registered(boot=1, incarnation=4, heartbeat_s=0.5, lost_after_s=3.0))
    hub.poll()
    (change,) = told(registry, SlicesChanged)
    assert isinstance(change, SlicesChanged)
    (offer,) = change.slices
    assert (offer["slice"], offer["rows"], offer["endpoint"]) == ("hub-3/0", 1, "ipc:///x")
    assert EnvSpec.from_data(offer["spec"]) == hub.spec
    hub.poll()
    (tick,) = actor.ticks()
    assert int(tick.episode[0]) == episode_id(4, 40, 0)
    beats: list[Message] = []
    deadline = time.monotonic() + 5
    while not beats and time.monotonic() < deadline:
        time.sleep(0.05)
        hub.poll()
        beats = told(registry, Heartbeat)
    assert isinstance(beats[-1], Heartbeat) and beats[-1].state == "run"
    assert beats[-1].stats["slices"] == ["hub-3/0"] and beats[-1].stats["rows"] == 1
    hub.stop()
    assert told(registry, Leave)


def test_slices_come_and_go_with_their_peers() -> None:
    hub, actor, registry, peer_end, clock = member_hub("dial_in")
    hub.poll()
    registry.send(Registered(boot=1, incarnation=0, heartbeat_s=0.5, lost_after_s=3.0))
    hub.poll()
    assert hub.state == "start" and not hub.ready
    told(registry, SlicesChanged)
    actor.attach("hub-3/0")
    peer = Peer(Script(1), peer_end)
    peer.dial()
    for _ in range(3):
        hub.poll()
        peer.poll()
    assert hub.ready
    (change,) = told(registry, SlicesChanged)
    assert isinstance(change, SlicesChanged) and change.slices[0]["slice"] == "hub-3/0"
    # The attachment that came before the peer was answered once it was there.
    hub.poll()
    assert [type(m) for m in actor.read()] == [Attached, Tick]
    peer_end.send(Goodbye("leaves"))
    hub.poll()
    clock.now += WITHDRAW_S - 1
    hub.poll()
    assert not actor.read()
    clock.now += 2
    hub.poll()
    (lost,) = actor.read()
    assert isinstance(lost, Detached) and "peers" in lost.reason
    *_, change = told(registry, SlicesChanged)
    assert isinstance(change, SlicesChanged) and change.slices == []


def test_rates_are_over_the_last_window() -> None:
    clock, counters = Clock(), Counters()
    rates = Rates(counters, clock)
    counters.steps, counters.busy_s = 300, 1.5
    clock.now += 0.5
    assert rates.numbers() == {"steps_per_s": 0.0, "busy": 0.0}
    clock.now += 1.5
    assert rates.numbers() == {"steps_per_s": 150.0, "busy": 0.75}
    clock.now += 2.0
    assert rates.numbers() == {"steps_per_s": 0.0, "busy": 0.0}


def test_returns_are_means_over_recent_episodes() -> None:
    hub, (actor,) = make_hub()
    assert hub.stats()["return_mean"] is None
    attached(hub, actor)
    play(hub, actor, 4)
    assert hub.stats()["return_mean"] == 6.0 and hub.stats()["length_mean"] == 3.0
    assert hub.stats()["steps"] == 3


def test_settings_that_do_not_fit_are_named() -> None:
    with pytest.raises(ConfigError, match="2 rows cannot be 3 slices"):
        make_hub(num_rows=2, num_slices=3)
    with pytest.raises(ConfigError, match="inline needs an environment"):
        make_hub(None)
    with pytest.raises(ConfigError, match="worker"):
        make_hub(placement="workers")


def test_same_seeds_same_ticks() -> None:
    import gymnasium

    from rollbus_wire.env import Rows

    def make(num_rows: int) -> Rows:
        return Rows([gymnasium.make("CartPole-v1") for _ in range(num_rows)])

    def collect() -> list[Tick]:
        hub, (actor,) = make_hub(make, num_rows=3, episodes=TrainingEpisodes(11))
        attached(hub, actor)
        return play(hub, actor, 60)

    one, two = collect(), collect()
    for a, b in zip(one, two, strict=True):
        for name in ("episode", "step", "reward", "terminated", "truncated", "seed", "final_return"):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
        np.testing.assert_array_equal(a.obs["obs"], b.obs["obs"])
    assert sum(len(t.final) for t in one) >= 15  # pushed to the left a pole falls in about 9 steps


def test_the_host_runs_and_ends_a_hub() -> None:
    hub, (actor,) = make_hub()
    turns = iter(range(100))
    run([hub], should_stop=lambda: next(turns) > 5)
    assert hub.finished
