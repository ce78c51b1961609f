"""Plans executed step by step: what is left of them travels as state."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rollbus_actor.engines.base import Forward
from rollbus_actor.single_steps import SingleSteps, single_steps
from rollbus_core.version import Version
from rollbus_policies.base import Act, Ask, PolicySpec

SPEC = PolicySpec(
    ("float32", (4, 2)), {"log_prob": ("float32", (3,))}, state="hub", state_size=1, chunk=4, execute=3,
    action_size=2,
)  # fmt: skip


class Planned:
    """Plans obs, obs + 1, obs + 2 in both elements, and counts its decisions in its state."""

    version: Version | None = Version(0, 1)

    def act(
        self, obs: Mapping[str, np.ndarray], state: np.ndarray | None, ask: Ask, seeds: np.ndarray
    ) -> Forward:
        assert state is not None and state.shape[1] == 1
        plan = obs["x"].reshape(-1, 1, 1) + np.arange(3, dtype=np.float32).reshape(1, 3, 1)
        return Forward(Act(np.repeat(plan, 2, 2), plan, state + 1), Version(0, 1))

    def set_weights(self, version: Version, tensors: Mapping[str, np.ndarray]) -> None:
        raise NotImplementedError


def test_a_plan_runs_to_its_end_before_the_next() -> None:
    """The second row begins anew (its state is zero) after two steps, in the middle of its plan."""
    engine = SingleSteps(Planned(), SPEC)
    assert (engine.spec.chunk, engine.spec.execute, engine.spec.extras) == (1, 1, {})
    state = np.zeros((2, engine.spec.state_size), np.float32)
    executed = []
    for step in range(6):
        if step == 2:
            state[1] = 0
        obs = {"x": np.array([10.0 * step, 100.0 + 10 * step], np.float32)}
        act = engine.act(obs, state, Ask("mode"), np.zeros(2, np.uint64)).act
        assert act.env_action.shape == (2, 2) and act.env_action.dtype == np.float32
        assert (act.env_action[:, 0] == act.env_action[:, 1]).all() and act.state is not None
        executed.append(act.env_action[:, 0].tolist())
        state = act.state.copy()
        assert state.dtype == np.float32 and state.shape == (2, engine.spec.state_size)
    assert [row[0] for row in executed] == [0, 1, 2, 30, 31, 32]
    assert [row[1] for row in executed] == [100, 101, 120, 121, 122, 150]
    assert state[:, 0].tolist() == [2, 2], "the policy's own state moves at its decisions only"


def test_one_action_at_a_time_is_left_as_it_is() -> None:
    engine, spec = Planned(), PolicySpec(("float32", (2,)))
    assert single_steps(engine, spec) == (engine, spec)
