"""Draws by priority: a sum tree over the steps of a replay table (Schaul et al., 1511.05952).

Steps are numbered since the table began; they come at the end and go at the front. Everything is vectorised
over the steps of one call, so a draw of thousands is a few array operations per level of the tree.
"""

from __future__ import annotations

import numpy as np

#: Added to every priority, so that no step is never drawn again.
SMALLEST = 1e-6


class Priorities:
    """Weights ``priority ^ exponent`` of live steps; a new step has the largest priority seen."""

    def __init__(self, exponent: float) -> None:
        self.exponent = exponent
        self._first = self._end = 0
        self._largest = 1.0
        self._size = 1024
        # Node i has the children 2 i and 2 i + 1; leaves begin at ``_size``.
        self._tree = np.zeros(2 * self._size)

    @property
    def total(self) -> float:
        """Sum of all weights."""
        return float(self._tree[1])

    def append(self, num: int) -> None:
        """``num`` new steps."""
        if self._end + num - self._first > self._size:
            self._grow(self._end + num - self._first)
        new = np.arange(self._end, self._end + num)
        self._end += num
        self._set(new, np.full(num, self._largest))

    def drop(self, num: int) -> None:
        """The ``num`` oldest steps go."""
        self._store(np.arange(self._first, self._first + num) % self._size, np.zeros(num))
        self._first += num

    def update(self, steps: np.ndarray, priorities: np.ndarray) -> None:
        """New priorities of ``steps``; those that are gone are passed over. Later ones of a step count."""
        live = (steps >= self._first) & (steps < self._end) & np.isfinite(priorities) & (priorities >= 0)
        steps, latest = np.unique(steps[live][::-1], return_index=True)
        priorities = priorities[live][::-1][latest] + SMALLEST
        if len(steps):
            self._largest = max(self._largest, float(priorities.max()))
            self._set(steps, priorities)

    def draw(self, num: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of ``num`` steps, one from each of ``num`` parts of the sum, and how likely each was."""
        generator = np.random.default_rng(seed)
        # In a random order: steps of one minibatch must not be neighbours.
        places = generator.random(num) + generator.permutation(num)
        left = places * (self.total / num)
        node = np.ones(num, np.int64)
        while node[0] < self._size:
            node *= 2
            first = self._tree[node]
            right = (left >= first) & (self._tree[node + 1] > 0)
            left -= np.where(right, first, 0.0)
            node += right
        leaf = node - self._size
        return self._first + (leaf - self._first) % self._size, self._tree[node] / self.total

    def _set(self, steps: np.ndarray, priorities: np.ndarray) -> None:
        self._store(steps % self._size, priorities**self.exponent)

    def _store(self, leaves: np.ndarray, weights: np.ndarray) -> None:
        """Write ``leaves`` and the sums above them."""
        node = leaves + self._size
        self._tree[node] = weights
        while len(node) and node[0] > 1:
            node = np.unique(node // 2)
            self._tree[node] = self._tree[2 * node] + self._tree[2 * node + 1]

    def _grow(self, least: int) -> None:
        live = np.arange(self._first, self._end)
        weights = self._tree[self._size + live % self._size]
        while self._size < least:
            self._size *= 2
        self._tree = np.zeros(2 * self._size)
        self._store(live % self._size, weights)
