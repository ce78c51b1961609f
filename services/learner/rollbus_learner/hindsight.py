"""Hindsight experience replay (Andrychowicz et al., 1707.01495): what was reached counts as what was wanted.

Strategy "future": the goal of a drawn transition becomes what was achieved after a decision of the same
episode, this one or a later one, up to ``horizon`` decisions ahead. The rewards of all decisions of the
transition are computed anew; with the new goal it may end earlier.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rollbus_core.feed import Hindsight
from rollbus_learner.returns import Returns
from rollbus_learner.step_target import Target, put_following
from rollbus_learner.stretches import Stretches
from rollbus_wire import lookup
from rollbus_wire.errors import ConfigError
from rollbus_wire.own_code import guard


class Relabel:
    """Gives a part of the transitions of a draw another goal."""

    def __init__(self, settings: Hindsight) -> None:
        self._settings, self._reward = settings, lookup.function(settings.reward, "algorithm.her_reward")
        self._goal, self._achieved = f"obs/{settings.goal}", f"obs/{settings.achieved}"

    @property
    def horizon(self) -> int:
        """Decisions from the drawn one on that a goal may come from."""
        return self._settings.horizon

    def __call__(self, stretches: Stretches, returns: Returns, target: Target, number: int) -> Goals:
        """Change ``returns`` and ``target``; random by ``number``, that of the draw.

        What is given back is to be put in place when the ends of the transitions are known.
        """
        random = np.random.default_rng(number)
        chosen = random.random(len(stretches.num)) < self._settings.fraction
        ahead = (random.random(len(stretches.num)) * stretches.num).astype(np.int64)
        place = np.flatnonzero(chosen & (stretches.num > 0))
        goal = self._reached(stretches, place, ahead[place])
        ends = np.zeros(len(place), bool)
        judged = False
        for step in range(returns.reward.shape[1]):
            live = np.flatnonzero((returns.num[place] > step) & ~ends)
            if not len(live):
                break
            reached = self._reached(stretches, place[live], np.full(len(live), step))
            reward, terminated = self._judged(reached, goal[live])
            returns.reward[place[live], step, 0] = reward
            if terminated is not None:
                judged = True
                ends[live] = terminated
                returns.num[place[live[terminated]]] = step + 1
        target.batch["reward"][place, 0] = returns.reward[place, 0, 0]
        return Goals(self._goal, place, goal, ends if judged else None)

    def _reached(self, stretches: Stretches, place: np.ndarray, ahead: np.ndarray) -> np.ndarray:
        """What was achieved after the decisions ``ahead`` of those drawn at ``place``, [s, ...]."""
        where = np.empty(len(stretches.num), np.int64)
        where[place] = np.arange(len(place))
        found: np.ndarray | None = None
        for part in stretches.parts(place, ahead):
            _check(part.view.columns, self._goal, self._achieved)
            column = part.view.columns[self._achieved]
            if found is None:
                found = np.zeros((len(place), *column.shape[3:]), column.dtype)
            put_following(found, replace(part, place=where[part.place]), self._achieved)
        return np.zeros((len(place), 0)) if found is None else found

    def _judged(self, reached: np.ndarray, goals: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        with guard(self._settings.reward, "its call (algorithm.her_reward)"):
            found: Any = self._reward(reached, goals)
        reward, terminated = found if isinstance(found, tuple) else (found, None)
        for name, value in {"reward": reward, "terminated": terminated}.items():
            if value is not None and np.shape(value) != (len(goals),):
                raise ConfigError(
                    f"{self._settings.reward} gave {name} of shape {list(np.shape(value))} for "
                    f"{len(goals)} goals; it must give one per row"
                )
        return reward, None if terminated is None else np.asarray(terminated, bool)


@dataclass
class Goals:
    """New goals [s, ...] of the transitions at ``place`` [s]; ``ends`` [s]: whether they are reached."""

    name: str
    place: np.ndarray
    goal: np.ndarray
    ends: np.ndarray | None

    def put(self, target: Target, depth: int) -> None:
        """Into the observations of both sides, K = ``depth`` frames each, and into ``terminated``."""
        for name in (self.name, f"next_{self.name}"):
            target.batch[name][self.place] = self.goal if depth == 1 else self.goal[:, None]
        if self.ends is not None:
            target.batch["terminated"][self.place] = self.ends


def _check(columns: dict[str, np.ndarray], goal: str, achieved: str) -> None:
    known = ", ".join(sorted(name[4:] for name in columns if name.startswith("obs/")))
    for key, name in {"her_goal": goal, "her_achieved": achieved}.items():
        if name not in columns:
            raise ConfigError(f"algorithm.{key}: {name[4:]!r} is no observation; there are {known}")
    if columns[goal].shape[3:] != columns[achieved].shape[3:]:
        raise ConfigError(f"goal and achieved are of different shapes: {goal[4:]}, {achieved[4:]}")
    if columns["reward"].shape[-1] > 1:
        raise ConfigError(
            "hindsight needs decisions of one step; set policy.chunk and env.action_repeat to 1"
        )
