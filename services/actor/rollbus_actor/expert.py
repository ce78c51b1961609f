"""The environment's expert acts in place of the policy: by chance (DAgger) or where they differ (HG-DAgger).

The policy decides every row all the same, so its recurrent state goes on and the gate can compare. Who acts
in a row is a function of the row's own seed. Symbols: B rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rollbus_actor.engines.base import Forward, InferenceEngine
from rollbus_actor.wrapped import WrappedEngine
from rollbus_core import rng
from rollbus_core.columns import SOURCES
from rollbus_core.feed import ExpertConfig
from rollbus_policies.base import Ask
from rollbus_wire.errors import ConfigError
from rollbus_wire.spec import EXPERT_ACTION, EnvSpec

_EXPERT = SOURCES.index("expert")
#: Stream of a row's random numbers that says whether the expert acts.
_OF_EXPERT = 1 << 33


class WithExpert(WrappedEngine):
    """An engine whose rows the expert of ``spec`` takes over at times."""

    def __init__(self, engine: InferenceEngine, policy: Any, spec: EnvSpec, config: ExpertConfig) -> None:
        """Raises `ConfigError` if there is no expert, or the policy decides several actions at once."""
        if EXPERT_ACTION not in spec.observation:
            raise ConfigError(
                f"{spec.name} has no expert: it observes {', '.join(spec.observation)}, not {EXPERT_ACTION} "
                "(toys: env.expert=true)"
            )
        if policy.spec.execute > 1:
            raise ConfigError(
                f"the policy executes {policy.spec.execute} actions per decision, the expert gives one; set "
                "policy.execute: 1"
            )
        super().__init__(engine)
        self._policy, self._spec, self._config = policy, spec, config

    def act(
        self, obs: Mapping[str, np.ndarray], state: np.ndarray | None, ask: Ask, seeds: np.ndarray
    ) -> Forward:
        """Decide for B rows, and put the expert's actions in place of some."""
        forward = self.engine.act(obs, state, ask, seeds)
        act, expert = forward.act, _newest(obs[EXPERT_ACTION], self._spec)
        taken = self._taken(act.env_action, expert, forward.version.number, seeds)
        if not taken.any():
            return forward
        wide = (
            expert if self._policy.spec.chunk == 1 else np.repeat(expert[:, None], self._policy.spec.chunk, 1)
        )
        stored = self._policy.from_env_action(wide)
        shown = expert.reshape(act.env_action.shape)
        source = np.where(taken, _EXPERT, 0).astype(np.uint8)
        chosen = replace(
            act, env_action=_where(taken, shown, act.env_action), action=_where(taken, stored, act.action),
            source=source,
        )  # fmt: skip
        return Forward(chosen, forward.version)

    def _taken(self, ours: np.ndarray, expert: np.ndarray, version: int, seeds: np.ndarray) -> np.ndarray:
        """bool [B]: rows in which the expert acts."""
        config, rows = self._config, len(seeds)
        streams = rng.step_seeds(seeds, np.full(rows, _OF_EXPERT, np.int64))
        taken = rng.uniform(streams, 1)[:, 0] < config.share * config.decay**version
        if config.gate:
            distance = np.abs(ours.reshape(rows, -1) - expert.reshape(rows, -1)).astype(np.float64)
            taken |= (distance > config.gate * self._half_width()).any(1)
        return taken

    def _half_width(self) -> np.ndarray:
        action = self._spec.action
        if action.kind != "continuous":
            return np.zeros(1)
        half = (np.asarray(action.high, np.float64) - np.asarray(action.low, np.float64)) / 2
        return np.where(np.isfinite(half), half, 1.0)


def _newest(actions: np.ndarray, spec: EnvSpec) -> np.ndarray:
    """[B, *shape] of what the expert says now; of a stack of frames the newest."""
    stacked = actions.ndim > 1 + len(spec.action.shape)
    return actions[:, -1] if stacked else actions


def _where(chosen: np.ndarray, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return np.where(chosen.reshape(-1, *[1] * (other.ndim - 1)), one.reshape(other.shape), other).astype(
        other.dtype
    )
