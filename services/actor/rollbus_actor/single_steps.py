"""One action per decision from a policy that decides several: what is left of a plan travels with the state.

For data sets, which hold an observation of every step. What is executed is what the hub would execute of
whole plans: a new one is asked for when the k actions of the last have run.
Symbols: B rows, k executed actions of a plan, E elements of an action, S size of the policy's own state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rollbus_actor.engines.base import Forward, InferenceEngine
from rollbus_actor.wrapped import WrappedEngine
from rollbus_policies.base import Act, Ask, PolicySpec


class SingleSteps(WrappedEngine):
    """An engine that executes the plans of ``policy`` step by step."""

    def __init__(self, engine: InferenceEngine, policy: PolicySpec) -> None:
        super().__init__(engine)
        self._own_size, self._size, self._num = policy.state_size, policy.action_size, policy.execute
        #: What the policy is from outside; it gives nothing but actions.
        self.spec = replace(
            policy, chunk=1, execute=1, state="hub", extras={},
            state_size=self._own_size + self._num * self._size + 1,
        )  # fmt: skip

    def act(
        self, obs: Mapping[str, np.ndarray], state: np.ndarray | None, ask: Ask, seeds: np.ndarray
    ) -> Forward:
        """Decide for B rows; ``state`` [B, S + k E + 1]: the policy's own, what is left, how many of k."""
        assert state is not None
        own, plan, left = np.split(state, [self._own_size, state.shape[1] - 1], 1)
        forward = self.engine.act(obs, own if self._own_size else None, ask, seeds)
        decided, rows = forward.act, len(seeds)
        # All rows have a pass, so that a row's result does not depend on what its neighbours have left.
        anew = left < 1
        plan = np.where(anew, decided.env_action.reshape(rows, -1), plan)
        left = np.where(anew, self._num, left) - 1
        later = np.zeros_like(plan)
        later[:, : -self._size] = plan[:, self._size :]
        after: Any = [] if decided.state is None else [np.where(anew, decided.state, own)]
        executed = plan[:, : self._size].reshape(rows, *decided.env_action.shape[2:])
        act = Act(
            executed.astype(decided.env_action.dtype), decided.action,
            np.concatenate([*after, later, left], 1).astype(np.float32),
        )  # fmt: skip
        return Forward(act, forward.version)


def single_steps(engine: InferenceEngine, policy: PolicySpec) -> tuple[InferenceEngine, PolicySpec]:
    """``engine`` so that it executes one action per decision of ``policy``, and what the policy is then."""
    if policy.chunk == 1:
        return engine, policy
    single = SingleSteps(engine, policy)
    return single, single.spec
