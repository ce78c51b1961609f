"""Levels in order: the next one begins once the present one is mastered.

    options:
      name: curriculum
      levels: [{distance: 0.1}, {distance: 0.3}, {distance: {uniform: [0.1, 0.8]}}]

The level rises when the mean score of the last ``window`` episodes of it reaches ``raise_at``, and falls when
it is below ``lower_at``. A part ``rehearse`` of the episodes is of lower levels, so that they are not
forgotten. A threshold on the success rate, as in Akkaya et al. 2019 ("Solving Rubik's cube with a robot
hand"), whose ranges grow per option, is here one on a list of levels.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from rollbus_simulator.options._levels import LevelConfig, Levels
from rollbus_wire.errors import ConfigError


class Config(LevelConfig):
    """Settings of the curriculum; thresholds are success rates, or returns with ``measure: return``."""

    raise_at: float = 0.8
    lower_at: float | None = None
    window: int = Field(50, ge=1)
    rehearse: float = Field(0.2, ge=0, lt=1)


class Curriculum(Levels):
    """The present level, and a few episodes of those below it."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if config.lower_at is not None and config.lower_at >= config.raise_at:
            raise ConfigError(f"lower_at {config.lower_at} is not below raise_at {config.raise_at}")
        self.config, self.level = config, 0
        self._window: deque[float] = deque(maxlen=config.window)

    def choose(self, chance: float) -> int:
        if chance < self.config.rehearse and self.level:
            return int(chance / self.config.rehearse * self.level)
        return self.level

    def learn(self, level: int, score: float) -> None:
        if level != self.level:
            return
        self._window.append(score)
        if len(self._window) < self.config.window:
            return
        mean, lower_at = sum(self._window) / len(self._window), self.config.lower_at
        if mean >= self.config.raise_at and level + 1 < self.num:
            self._move(level + 1)
        elif lower_at is not None and mean < lower_at and level:
            self._move(level - 1)

    def _move(self, level: int) -> None:
        self.level = level
        self._window.clear()

    def numbers(self) -> dict[str, float]:
        return {"option_level": float(self.level), **super().numbers()}

    def state(self) -> dict[str, Any]:
        return {"level": self.level, "window": list(self._window), **super().state()}

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        self._move(int(state["level"]))
        self._window.extend(map(float, state["window"]))


def make(config: Config) -> Curriculum:
    """Raises `ConfigError`."""
    return Curriculum(config)
