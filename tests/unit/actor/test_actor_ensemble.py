"""Temporal ensembling: means by hand, what travels as state, what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from rollbus_actor.actor import Actor
from rollbus_actor.engines.base import Forward
from rollbus_actor.engines.torch_local import Engine
from rollbus_actor.ensemble import Ensembled
from rollbus_core.config.models import ActorConfig, EnvConfig
from rollbus_core.version import Version
from rollbus_envs import toy
from rollbus_policies import mlp
from rollbus_policies.base import Act, Ask, PolicySpec
from rollbus_simulator.episodes import TrainingEpisodes
from rollbus_simulator.hub import Hub
from rollbus_wire.errors import ConfigError
from rollbus_wire.link import local_pair
from rollbus_wire.polling import Poller

SPEC = PolicySpec(("float32", (3, 1)), {"log_prob": ("float32", (3,))}, chunk=3, execute=3)


class Planned:
    """Plans what the observation says: [B, 3] actions of one element."""

    version: Version | None = Version(0, 1)

    def act(
        self, obs: Mapping[str, np.ndarray], state: np.ndarray | None, ask: Ask, seeds: np.ndarray
    ) -> Forward:
        plan = obs["plan"][..., None]
        return Forward(Act(plan, plan), Version(0, 1))

    def set_weights(self, version: Version, tensors: Mapping[str, np.ndarray]) -> None:
        raise NotImplementedError


def execute(plans: list[list[float]], decay: float) -> list[float]:
    engine = Ensembled(Planned(), SPEC, decay)
    state = np.zeros((1, engine.spec.state_size), np.float32)
    executed = []
    for plan in plans:
        obs = {"plan": np.array([plan], np.float32)}
        act = engine.act(obs, state, Ask("mode"), np.zeros(1, np.uint64)).act
        assert act.env_action.shape == (1, 1, 1) and act.state is not None
        state = act.state
        executed.append(float(act.env_action[0, 0, 0]))
    return executed


@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_the_executed_action_is_the_weighted_mean_of_what_was_planned(decay: float) -> None:
    w = np.exp(-decay * np.arange(3))
    plans = [[1, 2, 3], [10, 20, 30], [100, 200, 300], [1000, 2000, 3000]]
    expected = [
        1,
        (w[0] * 2 + w[1] * 10) / w[:2].sum(),
        (w[0] * 3 + w[1] * 20 + w[2] * 100) / w.sum(),
        (w[0] * 30 + w[1] * 200 + w[2] * 1000) / w.sum(),
    ]
    assert execute(plans, decay) == pytest.approx(expected, rel=1e-6)


def test_equal_plans_are_executed_to_the_bit() -> None:
    assert execute([[0.1, 0.1, 0.1]] * 8, 0.3) == [np.float32(0.1)] * 8


@pytest.mark.parametrize("changed", [{"chunk": 1, "execute": 1}, {"execute": 2}])
def test_a_policy_that_does_not_plan_is_refused(changed: dict[str, int]) -> None:
    spec = PolicySpec(("float32", (3, 1)), **{"chunk": 3, "execute": 3, **changed})
    with pytest.raises(ConfigError, match=r"policy.chunk above 1"):
        Ensembled(Planned(), spec, 0.1)


def test_log_probs_of_what_was_not_sampled_are_not_recorded() -> None:
    assert "log_prob" not in Ensembled(Planned(), SPEC, 0.1).spec.extras


def run(decay: float | None) -> Any:
    """A hub of two rows and an actor with this setting, for 30 passes; the hub's counters."""
    env = toy.Config(kind="continuous")
    policy = mlp.make(mlp.Config(chunk=4), toy.make(env, 1).spec, critic=False)
    hub_end, actor_end = local_pair(senders=("hub", "actor"))
    hub = Hub(
        "hub-0", 0, EnvConfig(num_envs=2, num_slices=1), num_rows=2, num_slices=1,
        episodes=TrainingEpisodes(1, 0), data_links=[hub_end],
        make_env=lambda num_rows: toy.make(env, num_rows),
    )  # fmt: skip
    hub.start(Poller())
    engine = Engine(policy, "cpu")
    engine.pin(Version(0, 1))
    actor = Actor(
        "actor-0", ActorConfig(temporal_ensemble=decay), engine=engine, policy_spec=policy.spec,
        connect=lambda _: actor_end,
    )  # fmt: skip
    actor.start(Poller())
    actor.take("hub-0/0", "local")
    while actor.stats.num_passes < 30:
        hub.poll()
        actor.poll()
    actor.stop()
    hub.stop()
    return hub.counters.steps


def test_a_hub_steps_once_per_decision_with_it_and_four_times_without() -> None:
    with_it, without = run(0.1), run(None)
    assert 50 <= with_it <= 60 and without > 150
