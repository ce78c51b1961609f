"""Costs that were wrong come back from what the right ones use."""

from __future__ import annotations

import pytest

from rollbus_core.feed import Feed, TableConfig
from rollbus_core.plan.calibrate import Seen, calibrated, mean_of, said_of, scaled
from rollbus_core.plan.costs import ActorCosts, HubCosts, IdleCosts, StageCosts
from rollbus_core.plan.layouts import Host, Layout, processes
from rollbus_core.plan.model import IO, Prediction, predict

HUB = HubCosts(tick_s=120e-6, row_s=10e-6, episode_s=40e-6)
ACTOR = ActorCosts(turn_s=50e-6, tick_s=10e-6, row_s=5e-6)
TRUE = StageCosts(
    hub_fused=HUB, hub_apart=HUB, actor_fused=ACTOR, actor_apart=ACTOR, store_s=50e-6, update_s=10e-3,
    learner_s=1e-3, message_s=20e-6, idle=IdleCosts(hub=5e-6, actor=5e-6), slowdown=1.1,
)  # fmt: skip
WRONG = TRUE.model_copy(
    update={
        "hub_apart": scaled(HUB, 0.5), "hub_fused": scaled(HUB, 1.3), "actor_apart": scaled(ACTOR, 0.6),
        "actor_fused": scaled(ACTOR, 1.3), "store_s": 120e-6, "update_s": 8e-3, "message_s": 60e-6,
    }
)  # fmt: skip
FUSED, APART = ("broker", "hub+actor", "learner"), ("broker", "hub", "actor", "learner")


def layout(entries: tuple[str, ...]) -> Layout:
    return Layout((Host(2, processes(entries, 1, 1), ((8, 8),)),))


def feed(lag: int) -> Feed:
    return Feed(table=TableConfig(batch_steps=512, max_lag=lag), num_decisions=32)


def seen(said: Prediction) -> Seen:
    """What a run would show that is exactly as ``said``."""
    per_step = {user: cores / said.steps_per_s for user, cores in said.process_cores.items()}
    io_s = per_step.pop(IO)
    return Seen(per_step, io_s, said.busy["learner"] / said.steps_per_s, episode_steps=100)


@pytest.mark.parametrize("entries", [FUSED, APART])
@pytest.mark.parametrize("lag", [0, 1])
def test_wrong_costs_become_right(entries: tuple[str, ...], lag: int) -> None:
    place, wanted = layout(entries), feed(lag)
    truth = predict(place, TRUE, wanted, episode_steps=100)
    before = predict(place, WRONG, wanted, episode_steps=100)
    assert abs(before.steps_per_s / truth.steps_per_s - 1) > 0.07
    costs = calibrated(WRONG, place, wanted, seen(truth))
    after = predict(place, costs, wanted, episode_steps=100)
    assert after.steps_per_s == pytest.approx(truth.steps_per_s, rel=0.03)
    assert costs.update_s == pytest.approx(10e-3, rel=0.05)


def test_right_costs_stay() -> None:
    place, wanted = layout(APART), feed(1)
    truth = predict(place, TRUE, wanted, episode_steps=100)
    costs = calibrated(TRUE, place, wanted, seen(truth))
    assert costs.hub_apart.tick_s == pytest.approx(HUB.tick_s, rel=0.02)
    assert costs.message_s == pytest.approx(20e-6, rel=0.05)
    assert costs.hub_fused == HUB  # nothing was seen of it


def test_a_part_of_the_batch_has_a_part_of_the_update() -> None:
    """A trial with half of the environments learns from half of the batch: the whole update stays."""
    half = TRUE.model_copy(update={"update_s": 5e-3, "learner_s": 0.5e-3})
    place, wanted = layout(APART), feed(1)
    truth = predict(place, half, wanted, episode_steps=100)
    costs = calibrated(TRUE, place, wanted, seen(truth), share=0.5)
    assert costs.update_s == pytest.approx(10e-3, rel=0.02)


def test_what_was_not_seen_changes_nothing() -> None:
    nothing = Seen(process_s={}, io_s=0.0, learner_s=0.0, episode_steps=100)
    assert calibrated(TRUE, layout(APART), feed(1), nothing) == TRUE


def test_runs_of_one_layout_count_the_same() -> None:
    one = Seen({"hub-0": 1e-5}, 2e-5, 3e-5, 10.0, steps_per_s=100.0, others_cores=0.0, seconds=2.0)
    other = Seen({"hub-0": 3e-5}, 4e-5, 5e-5, 30.0, steps_per_s=300.0, others_cores=2e-6, seconds=4.0)
    mean = mean_of([one, other])
    assert mean.process_s == pytest.approx({"hub-0": 2e-5})
    found = [mean.io_s, mean.learner_s, mean.episode_steps, mean.steps_per_s, mean.others_cores, mean.seconds]
    assert found == pytest.approx([3e-5, 4e-5, 20.0, 200.0, 1e-6, 3.0])
    assert mean_of([one]) == one


def test_what_is_said_of_a_trial_has_its_part_of_the_update() -> None:
    """An update of 80 ms bounds the rate; half of the batch is learned from in half of the time."""
    slow, place = TRUE.model_copy(update={"update_s": 80e-3, "learner_s": 0.0}), layout(APART)
    none = Seen(process_s={}, io_s=0.0, learner_s=0.0, episode_steps=100)
    whole, half = (said_of(place, slow, feed(1), none, share=share).steps_per_s for share in (1.0, 0.5))
    assert whole == pytest.approx(512 / 80e-3, rel=0.12) and half == pytest.approx(2 * whole, rel=0.12)
