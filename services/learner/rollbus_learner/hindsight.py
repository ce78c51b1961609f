"""Hindsight experience replay (Andrychowicz et al., 1707.01495): what was reached counts as what was wanted.

Strategy "future": the goal of a drawn transition becomes what was achieved after a decision of the same
episode, this one or a later one, as far as its chunk has it; the reward is computed anew.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rollbus_core.feed import Hindsight
from rollbus_learner.gather_steps import Part, Target, end_of_stretch, put_following
from rollbus_wire import lookup
from rollbus_wire.errors import ConfigError


class Relabel:
    """Gives a part of the transitions of a draw another goal."""

    def __init__(self, settings: Hindsight) -> None:
        self._settings, self._reward = settings, lookup.function(settings.reward, "algorithm.her_reward")

    def __call__(self, part: Part, target: Target, number: int) -> None:
        """Change columns of ``target`` at the places of ``part``; random by ``number``, that of the draw."""
        settings, view = self._settings, part.view
        goal, achieved = f"obs/{settings.goal}", f"obs/{settings.achieved}"
        _check(view.columns, goal, achieved)
        random = np.random.default_rng([number, view.slab])
        chosen = np.flatnonzero(random.random(len(part.place)) < settings.fraction)
        part = Part(view, part.place[chosen], part.cell[chosen], part.time[chosen], part.row[chosen])
        left = end_of_stretch(part, view.layout.num_decisions).time - part.time + 1
        later = part.time + (random.random(len(chosen)) * left).astype(part.time.dtype)
        wanted = Part(view, np.arange(len(chosen)), part.cell, later, part.row)
        goals = np.empty((len(chosen), *view.columns[achieved].shape[3:]), view.columns[achieved].dtype)
        put_following(goals, wanted, achieved)
        reached = np.empty_like(goals)
        put_following(reached, Part(view, wanted.place, part.cell, part.time, part.row), achieved)
        batch = target.batch
        for name in (goal, f"next_{goal}"):
            batch[name][part.place] = goals if part.depth == 1 else goals[:, None]
        reward, terminated = self._judged(reached, goals)
        batch["reward"][part.place, 0] = reward
        if terminated is not None:
            batch["terminated"][part.place] = terminated

    def _judged(self, reached: np.ndarray, goals: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        found: Any = self._reward(reached, goals)
        reward, terminated = found if isinstance(found, tuple) else (found, None)
        for name, value in {"reward": reward, "terminated": terminated}.items():
            if value is not None and np.shape(value) != (len(goals),):
                raise ConfigError(
                    f"{self._settings.reward} gave {name} of shape {list(np.shape(value))} for "
                    f"{len(goals)} goals; it must give one per row"
                )
        return reward, terminated


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
