"""Seeds of decisions, a function of (stream, episode, step); the episode's part is computed once."""

from __future__ import annotations

import numpy as np

from rollbus_core.rng import episode_keys, step_seeds


class DecisionSeeds:
    """`rollbus_core.rng.decision_seeds` that remembers the episodes of the last call."""

    def __init__(self, key: np.uint64) -> None:
        self._key = key
        self._episodes = b""
        self._keys = np.zeros(0, np.uint64)

    def __call__(self, episode: np.ndarray, step: np.ndarray) -> np.ndarray:
        """uint64 [B], one seed per (episode int64 [B], step [B])."""
        episodes = episode.tobytes()
        if episodes != self._episodes:
            self._episodes, self._keys = episodes, episode_keys(self._key, episode)
        return step_seeds(self._keys, step)
