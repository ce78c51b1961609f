"""The observation that each row of a slice shows now, and the ones before it.

Symbols: N rows, K stacked frames.
"""

from __future__ import annotations

import numpy as np

from rollbus_wire.messages import Arrays
from rollbus_wire.spec import EnvSpec

#: Selects all rows of a slice.
ALL = slice(None)
Rows = np.ndarray | slice


class Frames:
    """Newest frame [N, ...] per key and a ring of the K - 1 frames before it.

    A whole slice's observation is kept as the array that came, which a tick may share; it is
    copied before rows of it change.
    """

    def __init__(self, spec: EnvSpec, num_rows: int, stack: int) -> None:
        shapes = {key: (item.dtype, item.shape) for key, item in spec.observation.items()}
        self.obs: Arrays = {k: np.zeros((num_rows, *s), d) for k, (d, s) in shapes.items()}
        self._shared = False
        self._length = stack - 1
        self._ring: Arrays = {k: np.zeros((self._length, num_rows, *s), d) for k, (d, s) in shapes.items()}
        self._next = np.zeros(num_rows, np.int64)
        self._places = np.arange(num_rows)

    def take(self, rows: Rows, obs: Arrays) -> None:
        """``obs`` [R, ...] is the newest frame of ``rows``."""
        if isinstance(rows, slice):
            self.obs, self._shared = obs, True
            return
        if self._shared:
            self.obs = {key: array.copy() for key, array in self.obs.items()}
            self._shared = False
        for key, array in self.obs.items():
            array[rows] = obs[key]

    def begin(self, rows: Rows, obs: Arrays) -> None:
        """``obs`` is the first frame of an episode: it also stands for the K - 1 before it."""
        self.take(rows, obs)
        if self._length:
            for key, ring in self._ring.items():
                ring[:, rows] = obs[key]

    def push(self, rows: Rows) -> None:
        """The newest frame of ``rows`` was acted on: it becomes the last one of their history."""
        if not self._length:
            return
        places, slots = self._places[rows], self._next[rows]
        for key, ring in self._ring.items():
            ring[slots, places] = self.obs[key][rows]
        self._next[rows] = (slots + 1) % self._length

    def newest(self, rows: Rows) -> Arrays:
        """Newest frames of ``rows``, to be given away."""
        if isinstance(rows, slice):
            self._shared = True
            return dict(self.obs)
        return {key: array[rows] for key, array in self.obs.items()}

    def history(self) -> Arrays | None:
        """[K - 1, N, ...] per key, oldest first; None without a stack."""
        if not self._length:
            return None
        order = (self._next + np.arange(self._length)[:, None]) % self._length
        return {key: ring[order, self._places] for key, ring in self._ring.items()}
