"""What sources with levels share: the options of each level, and how its episodes went."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from rollbus_simulator.options._draws import chance, drawn
from rollbus_simulator.options.base import OptionConfig, OptionSource, Result, Start
from rollbus_wire.errors import ConfigError

#: Episodes of a level over which its mean score is told.
RECENT_EPISODES = 100


class LevelConfig(OptionConfig):
    """``levels``: option -> value for each level, values as those of ``random``; ``values`` hold in all."""

    levels: list[dict[str, Any]] = Field(min_length=2)
    measure: Literal["success", "return"] = "success"


class Levels(OptionSource):
    """Chooses a level for each episode by the episode's seed and by how episodes went before."""

    adapts: ClassVar[bool] = True

    def __init__(self, config: LevelConfig) -> None:
        """Raises `ConfigError`."""
        self._drawn = [drawn({**config.values, **level}) for level in config.levels]
        self.measure, self.num = config.measure, len(config.levels)
        self.episodes = [0] * self.num
        self._recent: list[deque[float]] = [deque(maxlen=RECENT_EPISODES) for _ in range(self.num)]

    def choose(self, chance: float) -> int:
        """The level for a number in [0, 1)."""
        raise NotImplementedError

    def learn(self, level: int, score: float) -> None:
        """An episode of ``level`` scored."""
        raise NotImplementedError

    def draw(self, seed: int) -> Start:
        level = self.choose(chance(seed, "level"))
        return Start(self._drawn[level](seed), level)

    def ended(self, start: Start, result: Result) -> None:
        score = result.ret if self.measure == "return" else result.success
        if score is None:
            raise ConfigError(
                "env.options: levels are measured by success, but the environment has no success signal; set "
                "env.options.measure=return, with thresholds in its units"
            )
        self.episodes[start.level] += 1
        self._recent[start.level].append(float(score))
        self.learn(start.level, float(score))

    def numbers(self) -> dict[str, float]:
        """Episodes of each level and the mean score of the last `RECENT_EPISODES` of them."""
        counts = {f"option_level_{k}_episodes": float(n) for k, n in enumerate(self.episodes)}
        means = {
            f"option_level_{k}_{self.measure}": sum(recent) / len(recent)
            for k, recent in enumerate(self._recent)
            if recent
        }
        return counts | means

    def state(self) -> dict[str, Any]:
        return {"episodes": self.episodes, "recent": [list(recent) for recent in self._recent]}

    def load(self, state: Mapping[str, Any]) -> None:
        self.episodes = [int(n) for n in state["episodes"]]
        for recent, scores in zip(self._recent, state["recent"], strict=True):
            recent.clear()
            recent.extend(map(float, scores))
