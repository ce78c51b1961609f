"""Environments of the Gymnasium registry that are vectorised themselves: one object for all rows.

For simulators that step many rows at once. All rows of one object are stepped together, so one
object holds the rows of one slice. With autoreset mode "disabled" single rows are reset when the
hub asks; with "same_step" the environment has begun the next episode already, and the adapter
hands out the last observation first and the new one at the hub's reset. "next_step" throws the
step after an end away, which cannot be given back to the other rows, so it is for one row only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Sequence

import numpy as np

from rollbus_wire.env import Arrays, Env, StepResult
from rollbus_wire.errors import ConfigError, MissingPackage, SpecError
from rollbus_wire.spaces import Observations, action_spec
from rollbus_wire.spec import EnvSpec

from ._registry import before_making, install_line, packages, problem

__all__ = ["Config", "Vector", "make", "needs", "packages", "problem"]

needs = ["gymnasium"]
#: The setting that `problem` is about.
checked = "id"

DISABLED, SAME_STEP, NEXT_STEP = "disabled", "same_step", "next_step"
#: How Gymnasium spells them.
_MODES = {DISABLED: "Disabled", SAME_STEP: "SameStep", NEXT_STEP: "NextStep"}


@dataclass
class Config:
    """Which environment, and what it is made with."""

    id: str = field(
        default="CartPole-v1",
        metadata={"description": "Id in the registry; module:Id imports the module first.", "unit": ""},
    )
    kwargs: Dict[str, Any] = field(
        default_factory=dict,
        metadata={"description": "Further arguments of gymnasium.make_vec.", "unit": ""},
    )
    vectorization: str = field(
        default="sync",
        metadata={
            "description": "sync or async: Gymnasium's own vectors; vector_entry_point: the "
            "environment's own vectorised class.",
            "unit": "",
        },
    )
    autoreset: str = field(
        default=DISABLED,
        metadata={
            "description": "disabled, same_step or next_step, for sync and async; an environment's "
            "own class states what it does.",
            "unit": "",
        },
    )
    success: bool = field(
        default=False,
        metadata={"description": "Whether info holds success or is_success.", "unit": ""},
    )


def make(config: Config, num_rows: int) -> Env:
    """One vectorised environment; raises `ConfigError` or `MissingPackage`."""
    try:
        import gymnasium
    except ModuleNotFoundError as error:
        raise MissingPackage(
            "env.name vector needs the package gymnasium; run: pip install gymnasium"
        ) from error
    before_making(config)
    own = config.vectorization == "vector_entry_point"
    try:
        env = gymnasium.make_vec(
            config.id,
            num_envs=num_rows,
            vectorization_mode=config.vectorization,
            vector_kwargs=None if own else {"autoreset_mode": _MODES[config.autoreset]},
            **config.kwargs,
        )
    except (gymnasium.error.DependencyNotInstalled, ModuleNotFoundError) as error:
        raise MissingPackage(
            "env.id %s needs a package that is not installed (%s); run: %s"
            % (config.id, error, install_line(gymnasium, config.id, error))
        ) from error
    except (gymnasium.error.Error, TypeError, ValueError, KeyError) as error:
        raise ConfigError(
            "%s cannot be made as one vectorised environment: %s: %s; env.name gymnasium makes one "
            "object per row" % (config, type(error).__name__, error)
        ) from error
    limit = int(gymnasium.spec(config.id).max_episode_steps or 0)
    return Vector(env, name=config.id, time_limit=limit, has_success=config.success, scene_seed=own)


class Vector(Env):
    """A Gymnasium `VectorEnv` under the contract."""

    def __init__(
        self,
        env: Any,
        *,
        name: str,
        time_limit: int = 0,
        has_success: bool = False,
        scene_seed: bool = False,
    ) -> None:
        """``scene_seed``: `reset` of ``env`` takes one seed for all rows instead of one per row."""
        self.env, self.num_rows, self._scene_seed = env, int(env.num_envs), scene_seed
        mode = (getattr(env, "metadata", None) or {}).get("autoreset_mode")
        spelt = {spelling: name for name, spelling in _MODES.items()}
        self.mode = spelt.get(str(getattr(mode, "value", mode)), NEXT_STEP)
        if self.mode == NEXT_STEP and self.num_rows > 1:
            raise SpecError(
                "%s resets itself one step after an end, which spoils the step of the other %d rows; "
                "make it with autoreset mode disabled or same_step" % (name, self.num_rows - 1)
            )
        self._observations = Observations(env.single_observation_space)
        action, self._to_env = action_spec(env.single_action_space)
        self.spec = EnvSpec(
            name=name,
            observation=self._observations.specs,
            action=action,
            time_limit=time_limit,
            # The vectorised object keeps its own limit, which cannot be taken off from outside.
            internal_truncation=True,
            seeding="scene",
            # An environment that resets itself draws its next episode without the hub's seed.
            deterministic=self.mode == DISABLED,
            has_success=has_success,
        )
        self._action_dtype = env.single_action_space.dtype
        #: Last and, where the environment has begun the next episode, the coming observation.
        self._now: Arrays = {}
        self._coming: Arrays = {}
        self._begun = np.zeros(self.num_rows, np.bool_)

    def reset(self, rows: np.ndarray, seeds: np.ndarray, options: Sequence[Any]) -> Arrays:
        whole = len(rows) == self.num_rows
        if any(options):
            return self._reset_with(rows, seeds, options)
        if whole and not self._begun.all():
            self._begun[:] = False
            self._now = self._arrays(self.env.reset(seed=self._seed(rows, seeds))[0])
            return self.observe(rows)
        if not self._now:
            raise SpecError("%s begins all its %d rows together" % (self.spec.name, self.num_rows))
        if self.mode == DISABLED:
            fresh = self._reset_masked(rows, seeds, {})
        elif self._begun[rows].all():
            fresh = self._coming if self.mode == SAME_STEP else self._next_step()
        else:
            raise SpecError(
                "%s resets itself and cannot reset single rows in mid-episode (rows %s); make it with "
                "autoreset mode disabled" % (self.spec.name, rows.tolist())
            )
        self._now = {key: value.copy() for key, value in self._now.items()}
        for key, value in self._now.items():
            value[rows] = fresh[key][rows]
        self._begun[rows] = False
        return self.observe(rows)

    def _reset_masked(self, rows: np.ndarray, seeds: np.ndarray, options: Dict[str, Any]) -> Arrays:
        """All observations, after a reset of ``rows`` alone."""
        mask = np.zeros(self.num_rows, np.bool_)
        mask[rows] = True
        seed = None if self._scene_seed else self._seed(rows, seeds)
        return self._arrays(self.env.reset(seed=seed, options=dict(options, reset_mask=mask))[0])

    def _reset_with(self, rows: np.ndarray, seeds: np.ndarray, options: Sequence[Any]) -> Arrays:
        """Gymnasium's vectors take one map of options: rows with equal ones are reset together."""
        if self.mode != DISABLED:
            raise SpecError(
                "%s resets itself, so its episodes cannot begin with options (env.options); make it with "
                "autoreset mode disabled" % self.spec.name
            )
        if not self._now:
            self.reset(rows, seeds, [])
        for chosen in {str(option): option for option in options}.values():
            mine = np.array([option == chosen for option in options])
            fresh = self._reset_masked(rows[mine], seeds[mine], chosen or {})
            self._now = {key: value.copy() for key, value in self._now.items()}
            for key, value in self._now.items():
                value[rows[mine]] = fresh[key][rows[mine]]
        return self.observe(rows)

    def step(self, rows: np.ndarray, actions: np.ndarray, observe: bool) -> StepResult:
        if len(rows) != self.num_rows:
            raise SpecError(
                "%s steps all its %d rows together, %d were asked for; leave env.tick_deadline_s at 0 "
                "and give each worker the rows of one slice" % (self.spec.name, self.num_rows, len(rows))
            )
        ordered = np.empty_like(actions)
        ordered[rows] = actions
        given = np.asarray(self._to_env(ordered), self._action_dtype)
        obs, reward, terminated, truncated, info = self.env.step(given)
        ended = np.asarray(terminated) | np.asarray(truncated)
        self._now = self._arrays(obs)
        if self.mode != DISABLED and ended.any():
            self._begun |= ended
            if self.mode == SAME_STEP:
                self._coming, self._now = self._now, self._with_final(self._now, info, ended)
        success = None
        if self.spec.has_success:
            given_success = info.get("success", info.get("is_success", np.zeros(self.num_rows)))
            success = np.asarray(given_success).astype(np.bool_)[rows]
        return StepResult(
            self.observe(rows) if observe else None,
            np.asarray(reward, np.float32)[rows],
            np.asarray(terminated, np.bool_)[rows],
            np.asarray(truncated, np.bool_)[rows],
            success,
        )

    def observe(self, rows: np.ndarray) -> Arrays:
        return {key: value[rows] for key, value in self._now.items()}

    def close(self) -> None:
        self.env.close()

    def _seed(self, rows: np.ndarray, seeds: np.ndarray) -> Any:
        """What `reset` of the vectorised environment takes."""
        if self._scene_seed:
            return int(seeds[0])
        order: List[Optional[int]] = [None] * self.num_rows
        for row, seed in zip(rows.tolist(), np.asarray(seeds).tolist()):
            order[row] = seed
        return order

    def _next_step(self) -> Arrays:
        """The step that only resets; its action is ignored."""
        action = np.zeros((1,) + self.spec.action.shape, self.spec.action.dtype)
        return self._arrays(self.env.step(np.asarray(self._to_env(action), self._action_dtype))[0])

    def _with_final(self, now: Arrays, info: Any, ended: np.ndarray) -> Arrays:
        rows = np.flatnonzero(ended)
        final = self._observations.gather([info["final_obs"][row] for row in rows])
        merged = {key: value.copy() for key, value in now.items()}
        for key, value in merged.items():
            value[rows] = final[key]
        return merged

    def _arrays(self, obs: Any) -> Arrays:
        """New arrays [num_rows, ...] from batched values."""
        return self._observations.convert(obs)
