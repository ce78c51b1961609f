"""Who may act besides a trained policy: an environment's expert, a function, chance.

Each is an inference engine without weights, so that the actor does not know the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from rollbus_actor.engines.base import Forward
from rollbus_core.rng import uniform
from rollbus_core.version import Version
from rollbus_policies.base import Act, Ask, PolicySpec
from rollbus_wire import lookup
from rollbus_wire.errors import ConfigError
from rollbus_wire.own_code import guard
from rollbus_wire.spec import EXPERT_ACTION, EnvSpec

#: (observations [B, ...] per key, seeds uint64 [B]) -> actions [B, ...] in the environment's units.
Script = Callable[[Mapping[str, np.ndarray], np.ndarray], np.ndarray]


class ScriptEngine:
    """Decides by ``script``; it is one version for ever."""

    def __init__(self, script: Script, spec: EnvSpec) -> None:
        self._script, self._spec = script, spec
        self.version = Version()
        self.policy_spec = PolicySpec(action=(spec.action.dtype, spec.action.shape))

    def act(
        self, obs: Mapping[str, np.ndarray], state: np.ndarray | None, ask: Ask, seeds: np.ndarray
    ) -> Forward:
        """The script's actions for B rows. Raises `ConfigError` if they do not fit the action's spec."""
        given = np.asarray(self._script(obs, seeds))
        expected = (len(seeds), *self._spec.action.shape)
        if given.shape != expected:
            raise ConfigError(f"the script gave actions {list(given.shape)}, {list(expected)} are expected")
        if self._spec.action.kind != "continuous" and given.dtype.kind not in "iu":
            raise ConfigError(f"the script gave {given.dtype} actions; {self._spec.name} takes integers")
        action = given.astype(self._spec.action.dtype)
        return Forward(Act(env_action=action, action=action), self.version)

    def set_weights(self, version: Version, tensors: Mapping[str, np.ndarray]) -> None:
        raise ConfigError("a script has no weights")


def expert(spec: EnvSpec) -> Script:
    """The environment's own expert. Raises `ConfigError` if it has none."""
    if EXPERT_ACTION not in spec.observation:
        raise ConfigError(
            f"{spec.name} has no expert: it observes {', '.join(spec.observation)}, not {EXPERT_ACTION}; "
            "give --policy module:function"
        )
    return lambda obs, seeds: obs[EXPERT_ACTION]


def random(spec: EnvSpec) -> Script:
    """Uniform over the action's bounds; a row's action is a function of its seed."""
    action = spec.action
    if action.kind == "continuous":
        if not np.isfinite([action.low, action.high]).all():
            raise ConfigError(
                f"{spec.name} has actions without bounds, of which chance cannot choose; give --policy "
                "module:function"
            )
        low, high = (np.reshape(bound, action.shape) for bound in (action.low, action.high))
        return lambda _, seeds: low + uniform(seeds, action.size).reshape(-1, *action.shape) * (high - low)
    num = np.reshape(action.num, action.shape)
    return lambda _, seeds: (uniform(seeds, action.size).reshape(-1, *action.shape) * num).astype(np.int64)


def function(name: str) -> Script:
    """``module:function`` of observations [B, ...] per key -> actions [B, ...]. Raises `ConfigError`."""
    found = lookup.function(name, "--policy")

    def decide(obs: Mapping[str, np.ndarray], _: np.ndarray) -> np.ndarray:
        with guard(name, "its call (--policy)"):
            return np.asarray(found(obs))

    return decide
