"""Reward scaling by the running standard deviation of the discounted return (no mean is subtracted).

Rows move between actors, so the return that is still running is kept per episode, not per row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

Array = np.ndarray


class RewardScaler:
    """Divides rewards by the standard deviation of ``G_t = discount_t G_{t-1} + R_t`` seen so far."""

    def __init__(self, eps: float = 1e-8) -> None:
        self.eps = eps
        self.count, self.mean, self.squares = 0, 0.0, 0.0
        #: Episode id -> discounted return so far, of episodes that go on.
        self.running: dict[int, float] = {}

    @property
    def scale(self) -> float:
        """The standard deviation, 1 before any return was seen."""
        if not self.count:
            return 1.0
        return float(np.sqrt(self.squares / self.count + self.eps))

    def __call__(
        self, reward: Array, discount: Array, done: Array, valid: Array, episode: Array, step: Array
    ) -> Array:
        """``reward`` over the scale, after these returns were merged. All arguments are [T, N]."""
        returns = self._returns(reward, discount, done, valid, episode, step)[valid]
        if returns.size:
            self._merge(returns)
        return reward / np.float32(self.scale)

    def _returns(
        self, reward: Array, discount: Array, done: Array, valid: Array, episode: Array, step: Array
    ) -> Array:
        """Discounted return of each decision's episode up to and with it, float64 [T, N]."""
        returns = np.zeros(reward.shape, np.float64)
        # Share of the return that a row brought along which is left at each decision.
        left = np.zeros(reward.shape, np.float64)
        total, share = np.zeros(reward.shape[1]), np.ones(reward.shape[1])
        for t in range(len(reward)):
            total = np.where(valid[t], total * discount[t] + reward[t], 0.0)
            share = np.where(valid[t], share * discount[t], 0.0)
            returns[t], left[t] = total, share
            total, share = np.where(done[t], 0.0, total), np.where(done[t], 0.0, share)
        lengths = valid.cumprod(axis=0).sum(axis=0)
        # An episode may cross two chunks of one batch: earlier steps first.
        for row in np.lexsort((step[0], episode[0])):
            if not lengths[row]:
                continue
            end = lengths[row] - 1
            brought = self.running.pop(int(episode[0, row]), 0.0)
            returns[:, row] += left[:, row] * brought
            if not done[end, row]:
                self.running[int(episode[end, row])] = float(returns[end, row])
        self._forget(2 * reward.shape[1])
        return returns

    def _forget(self, keep: int) -> None:
        """Drop the oldest running returns: of episodes whose end never arrived."""
        for episode in list(self.running)[: max(0, len(self.running) - max(keep, 4096))]:
            del self.running[episode]

    def _merge(self, returns: Array) -> None:
        """Add ``returns`` to count, mean and sum of squares (Chan et al., 1979)."""
        count = self.count + returns.size
        difference = float(returns.mean()) - self.mean
        self.squares += float(returns.var()) * returns.size
        self.squares += difference**2 * self.count * returns.size / count
        self.mean += difference * returns.size / count
        self.count = count

    def state(self) -> dict[str, Any]:
        """Plain numbers for the checkpoint."""
        return {
            "count": self.count,
            "mean": self.mean,
            "squares": self.squares,
            "episodes": list(self.running),
            "returns": list(self.running.values()),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        self.count, self.mean = int(state["count"]), float(state["mean"])
        self.squares = float(state["squares"])
        self.running = {int(e): float(g) for e, g in zip(state["episodes"], state["returns"])}
