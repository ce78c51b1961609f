"""The last K frames of each row of a slice, for policies that see several at once.

Where an episode begins its first frame is repeated, as the hub and the learner do.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


class FrameStack:
    """K frames per row and key, [N, K, ...], oldest first."""

    def __init__(self, num_frames: int, num_rows: int, history: Mapping[str, np.ndarray] | None) -> None:
        """``history``: the K-1 frames before the next one, [K-1, N, ...], or None if unknown."""
        self.num_frames, self.num_rows = num_frames, num_rows
        self._rings: dict[str, np.ndarray] = {}
        #: Rows whose ring holds nothing yet: their next frame fills it.
        self._blank = np.full(num_rows, not history)
        for key, frames in (history or {}).items():
            ring = np.zeros((num_rows, num_frames, *frames.shape[2:]), frames.dtype)
            ring[:, 1:] = np.moveaxis(frames, 0, 1)
            self._rings[key] = ring

    def push(self, rows: np.ndarray, obs: Mapping[str, np.ndarray], begins: np.ndarray) -> None:
        """Take the next frame of ``rows``; ``begins`` [R]: it is the first of an episode."""
        fresh = begins | self._blank[rows]
        self._blank[rows] = False
        for key, frame in obs.items():
            ring = self._ring(key, frame)
            shifted = np.concatenate([ring[rows, 1:], frame[:, None]], axis=1)
            if fresh.any():
                shifted[fresh] = frame[fresh, None]
            ring[rows] = shifted

    def stacks(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """[R, K, ...] per key."""
        return {key: ring[rows] for key, ring in self._rings.items()}

    def followed_by(self, rows: np.ndarray, obs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The stacks [R, K, ...] that ``obs`` [R, ...] would give as next frame of the same episodes."""
        return {
            key: np.concatenate([self._rings[key][rows, 1:], frame[:, None]], axis=1)
            for key, frame in obs.items()
        }

    def history(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The frames before the newest, [K-1, R, ...] per key."""
        return {key: np.moveaxis(ring[rows, :-1], 1, 0) for key, ring in self._rings.items()}

    def _ring(self, key: str, frame: np.ndarray) -> np.ndarray:
        ring = self._rings.get(key)
        if ring is None:
            ring = np.zeros((self.num_rows, self.num_frames, *frame.shape[1:]), frame.dtype)
            self._rings[key] = ring
        return ring
