"""Temporal ensembling (Zhao et al., 2304.13705): decide at every step, execute the mean of all plans.

Each decision plans C actions. The i-th decision that planned a step counts with exp(-m i), the oldest with
1. The running means travel with the recurrent state, so another actor goes on where this one stopped.
Symbols: B rows, C planned actions, E elements of an action, S size of the policy's own state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rollbus_actor.engines.base import Forward, InferenceEngine
from rollbus_actor.wrapped import WrappedEngine
from rollbus_policies.base import Act, Ask, PolicySpec
from rollbus_wire.errors import ConfigError


class Ensembled(WrappedEngine):
    """An engine that executes one action per decision: the weighted mean of what was planned for now."""

    def __init__(self, engine: InferenceEngine, policy: PolicySpec, decay: float) -> None:
        """``decay`` is m. Raises `ConfigError` for a policy that does not plan ahead."""
        if policy.chunk == 1 or policy.execute != policy.chunk:
            raise ConfigError(
                "actor.temporal_ensemble needs all actions of a decision: set policy.chunk above 1 and "
                f"policy.execute to 0, not chunk {policy.chunk} and execute {policy.execute}"
            )
        super().__init__(engine)
        self._decay, self._chunk = decay, policy.chunk
        self._own_size, self._size = policy.state_size, policy.action_size
        #: What the policy is from outside. Its log-probs are not those of what is executed.
        self.spec = replace(
            policy, execute=1, state="hub", state_size=self._own_size + self._chunk * (self._size + 1),
            extras={name: kind for name, kind in policy.extras.items() if name != "log_prob"},
        )  # fmt: skip

    def act(
        self, obs: Mapping[str, np.ndarray], state: np.ndarray | None, ask: Ask, seeds: np.ndarray
    ) -> Forward:
        """Decide for B rows; ``state`` [B, S + C (E + 1)] holds the policy's own and the means."""
        assert state is not None
        own, plan = state[:, : self._own_size], state[:, self._own_size :]
        forward = self.engine.act(obs, own if self._own_size else None, ask, seeds)
        planned = forward.act.env_action
        if planned.dtype.kind != "f":
            raise ConfigError("actor.temporal_ensemble averages actions, and these are discrete; remove it")
        executed, plan = self._merge(plan, planned.reshape(len(seeds), self._chunk, self._size))
        after: Any = [] if forward.act.state is None else [forward.act.state]
        act = Act(
            executed.reshape(len(seeds), 1, *planned.shape[2:]), forward.act.action,
            np.concatenate([*after, plan], 1), forward.act.extras,
        )  # fmt: skip
        return Forward(act, forward.version)

    def _merge(self, plan: np.ndarray, planned: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(executed [B, E], the plan for later [B, C (E + 1)])."""
        rows = len(plan)
        split = self._chunk * self._size
        mean, count = plan[:, :split].reshape(planned.shape), plan[:, split:]
        weight = np.exp(-self._decay * count)
        before = count if self._decay == 0 else np.expm1(-self._decay * count) / np.expm1(-self._decay)
        # A running mean stays within the bounds of what it is made of; a sum of shares may leave them.
        mean = mean + (planned - mean) * (weight / (before + weight))[..., None].astype(np.float32)
        later = np.zeros_like(plan)
        later[:, : split - self._size] = mean[:, 1:].reshape(rows, -1)
        later[:, split:-1] = count[:, 1:] + 1
        return mean[:, 0], later
