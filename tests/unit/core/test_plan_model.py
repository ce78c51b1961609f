"""The discrete-event model against rates that can be written down."""

from __future__ import annotations

import math

import pytest

from rollbus_core.feed import Feed, TableConfig
from rollbus_core.plan.costs import ActorCosts, HubCosts, StageCosts
from rollbus_core.plan.layouts import Host, Layout, Process, processes, split
from rollbus_core.plan.model import predict
from rollbus_wire.errors import ConfigError

T, N = 32, 8
FUSED, APART = ("broker", "hub+actor", "learner"), ("broker", "hub", "actor", "learner")


def costs(**changed: object) -> StageCosts:
    """Only the stages cost something: 8 rows take 200 us in the hub and 100 us in the actor."""
    hub = HubCosts(tick_s=120e-6, row_s=10e-6)
    actor = ActorCosts(turn_s=50e-6, tick_s=10e-6, row_s=5e-6)
    plain = {
        "hub_fused": hub, "hub_apart": hub, "actor_fused": actor, "actor_apart": actor, "store_s": 0.0,
        "update_s": 1e-3, "learner_s": 0.0,
    }  # fmt: skip
    return StageCosts(**(plain | changed))


def feed(num_rows: int = N, lag: int = 1) -> Feed:
    return Feed(table=TableConfig(batch_steps=num_rows * T, max_lag=lag), num_decisions=T)


def one_host(
    entries: tuple[str, ...], slices: tuple[int, ...] = (N,), cores: int = 8, hubs: int = 1
) -> Layout:
    return Layout((Host(cores, processes(entries, hubs, 1), (slices,) * hubs),))


def test_collection_alone_takes_hub_and_actor_in_turn() -> None:
    """One slice, nothing else in the way: 8 rows per 300 us."""
    found = predict(one_host(FUSED), costs(), feed())
    assert found.steps_per_s == pytest.approx(N / 300e-6, rel=0.01)
    assert found.busy["hub"] == pytest.approx(2 / 3, abs=0.01)
    assert found.busy["actor"] == pytest.approx(1 / 3, abs=0.01)
    assert found.bottleneck == "hub+actor"


def test_two_slices_apart_overlap_to_the_slower_stage() -> None:
    """Hub 200 us per tick, actor 100 us: the hub never waits."""
    found = predict(one_host(APART, (N, N)), costs(), feed(2 * N))
    assert found.steps_per_s == pytest.approx(N / 200e-6, rel=0.02)
    assert found.bottleneck == "hub" and found.busy["hub"] == pytest.approx(1.0, abs=0.02)


def test_one_slice_apart_does_not_overlap() -> None:
    apart = predict(one_host(APART), costs(), feed()).steps_per_s
    assert apart == pytest.approx(N / 300e-6, rel=0.01)


def test_an_update_slower_than_collection_bounds_the_rate() -> None:
    found = predict(one_host(FUSED), costs(update_s=40e-3), feed())
    assert found.steps_per_s == pytest.approx(N * T / 40e-3, rel=0.01)
    assert found.bottleneck == "learner"


def test_lag_0_takes_collection_and_update_in_turn() -> None:
    found = predict(one_host(FUSED), costs(update_s=5e-3), feed(lag=0))
    assert found.steps_per_s == pytest.approx(N * T / (T * 300e-6 + 5e-3), rel=0.01)


def test_one_core_does_everything_in_turn() -> None:
    found = predict(one_host(FUSED, cores=1), costs(update_s=5e-3), feed())
    assert found.steps_per_s == pytest.approx(N * T / (T * 300e-6 + 5e-3), rel=0.01)
    assert found.cores_used[0] == pytest.approx(1.0, abs=0.01)


def test_an_update_on_a_device_leaves_the_core() -> None:
    found = predict(one_host(FUSED, cores=1), costs(update_s=5e-3, update_on_device=True), feed())
    assert found.steps_per_s == pytest.approx(N / 300e-6, rel=0.02)


def test_messages_and_waking_delay_one_slice() -> None:
    """Two messages per tick, each 20 us of I/O threads and 30 us of waking."""
    found = predict(one_host(APART), costs(message_s=20e-6, wake_s=30e-6), feed())
    assert found.steps_per_s == pytest.approx(N / 400e-6, rel=0.02)


def test_ends_of_episodes_cost() -> None:
    hub = HubCosts(tick_s=120e-6, row_s=10e-6, episode_s=100e-6)
    short = predict(one_host(FUSED), costs(hub_fused=hub), feed(), episode_steps=10)
    assert short.steps_per_s == pytest.approx(N / (300e-6 + N * 10e-6), rel=0.01)
    long = predict(one_host(FUSED), costs(hub_fused=hub), feed(), episode_steps=1e6)
    assert long.steps_per_s == pytest.approx(N / 300e-6, rel=0.01)


def test_records_after_the_answer_overlap_with_stepping() -> None:
    """50 of the actor's 100 us come after the answer: the next tick is stepped meanwhile."""
    actor = ActorCosts(turn_s=50e-6, tick_s=10e-6, row_s=5e-6, record_s=50e-6)
    found = predict(one_host(APART), costs(actor_apart=actor), feed())
    assert found.steps_per_s == pytest.approx(N / 250e-6, rel=0.01)


def test_replay_follows_insertions() -> None:
    table = TableConfig(sampler="replay", steps_per_update=64)
    found = predict(one_host(FUSED), costs(update_s=10e-3), Feed(table=table, num_decisions=4, unit="step"))
    assert found.steps_per_s == pytest.approx(64 / 10e-3, rel=0.02)


def test_copies_of_a_host_are_as_good_as_hosts() -> None:
    collect = Process(("hub", "actor"))
    first = Host(4, (Process(("broker",)), Process(("learner",))))
    three = Layout((first, *[Host(4, (collect,), ((N,),)) for _ in range(3)]))
    copied = Layout((first, Host(4, (collect,), ((N,),), copies=3)))
    assert three.num_rows == copied.num_rows == 3 * N
    found = [predict(layout, costs(), feed(3 * N), network_s=50e-6).steps_per_s for layout in (three, copied)]
    assert found[0] == pytest.approx(3 * N / 300e-6, rel=0.03)
    assert found[1] == pytest.approx(found[0], rel=0.03)


def test_thousands_of_actors_take_no_longer_to_simulate() -> None:
    collect, first = Process(("hub", "actor")), Host(4, (Process(("broker",)), Process(("learner",))))
    events = []
    for copies in (10, 4000):
        layout = Layout((first, Host(4, (collect,), ((N,),), copies=copies)))
        found = predict(layout, costs(update_s=1e-6), feed(copies * N))
        events.append(found.num_events)
        assert found.steps_per_s == pytest.approx(copies * N / 300e-6, rel=0.03)
    assert math.isclose(*events, rel_tol=0.1)


def test_the_same_again_gives_the_same() -> None:
    layout = one_host(APART, (N, N), cores=2, hubs=2)
    first, second = (predict(layout, costs(slowdown=1.2), feed(4 * N)) for _ in range(2))
    assert first == second


def test_a_layout_without_a_learner_is_refused() -> None:
    with pytest.raises(ConfigError, match="lacks a broker, a learner or slices"):
        predict(Layout((Host(2, processes(("broker", "hub+actor"), 1, 1), ((N,),)),), "odd"), costs(), feed())


def test_split_is_the_hubs_own() -> None:
    from rollbus_simulator.hub import split as hub_split

    assert [list(split(n, k)) for n in (7, 16, 9) for k in (1, 2, 4)] == [
        hub_split(n, k) for n in (7, 16, 9) for k in (1, 2, 4)
    ]
