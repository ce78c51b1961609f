"""Levels where learning moves: each is drawn by how fast its score changes.

    options: {name: progress, levels: [{distance: 0.1}, {distance: 0.3}, {distance: 0.8}]}

The progress of a level is |fast mean - slow mean| of its scores, both exponential: it counts forgetting as
well as learning (Matiisen et al., 1707.00183; two means as in Kanitscheider et al., 2106.14876). A part
``explore`` of the episodes is drawn evenly from all levels; so are all as long as nothing moves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from rollbus_simulator.options._levels import LevelConfig, Levels
from rollbus_wire.errors import ConfigError


class Config(LevelConfig):
    """Rates of the two means, per episode of the level."""

    fast: float = Field(0.1, gt=0, le=1)
    slow: float = Field(0.02, gt=0, lt=1)
    explore: float = Field(0.2, gt=0, le=1)


class Progress(Levels):
    """Levels in proportion to their progress."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if config.slow >= config.fast:
            raise ConfigError(f"slow {config.slow} is not below fast {config.fast}")
        self.config = config
        #: Fast and slow mean of each level; None before its first episode.
        self._means: list[tuple[float, float] | None] = [None] * self.num

    def weights(self) -> list[float]:
        """The chance of each level; they sum to 1."""
        progress = [abs(means[0] - means[1]) if means else 0.0 for means in self._means]
        total, even = sum(progress), 1.0 / self.num
        if total <= 0:
            return [even] * self.num
        explore = self.config.explore
        return [explore * even + (1 - explore) * each / total for each in progress]

    def choose(self, chance: float) -> int:
        below = 0.0
        for level, weight in enumerate(self.weights()):
            below += weight
            if chance < below:
                return level
        return self.num - 1

    def learn(self, level: int, score: float) -> None:
        fast, slow = self._means[level] or (score, score)
        fast += self.config.fast * (score - fast)
        slow += self.config.slow * (score - slow)
        self._means[level] = (fast, slow)

    def numbers(self) -> dict[str, float]:
        chances = {f"option_level_{k}_chance": weight for k, weight in enumerate(self.weights())}
        return chances | super().numbers()

    def state(self) -> dict[str, Any]:
        return {"means": [list(means) if means else None for means in self._means], **super().state()}

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        self._means = [(float(m[0]), float(m[1])) if m else None for m in state["means"]]


def make(config: Config) -> Progress:
    """Raises `ConfigError`."""
    return Progress(config)
