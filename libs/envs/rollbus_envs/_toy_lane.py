"""A toy of driving: its expert never shows what to do off the middle of the lane, as it is never there."""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np

from rollbus_wire.env import Arrays
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec

from ._toy_base import Advance, Toy, draws


class Lane(Toy):
    """Keep a car on a winding lane, 2 wide; off it the episode ends, each of T steps on it gives 1 / T.

    Seen are the offset from the middle, the heading against the lane, and the curvature here. The action is
    the curvature that is steered. The best action follows the lane and steers back.
    """

    SPEED, LENGTH = 0.6, 60

    def __init__(self, config: Any, num_rows: int) -> None:
        super().__init__(num_rows)
        self.length = config.length or self.LENGTH
        self.offset = self.array("offset", (), np.float64)
        self.heading = self.array("heading", (), np.float64)
        self.spec = EnvSpec(
            name="toy-lane",
            observation={"obs": ArraySpec("float32", (3,))},
            action=ActionSpec("continuous", shape=(1,), low=[-2.0], high=[2.0]),
            has_success=True,
            success="at_end",
            optimal_return=1.0,
        )

    def begin(self, rows: np.ndarray, options: Sequence[Any]) -> None:
        self.offset[rows] = self.heading[rows] = 0.0

    def curvature(self, rows: np.ndarray) -> np.ndarray:
        """float64 [R] in [-1, 1]: it changes slowly, by a few waves of the row's own."""
        random = draws(self.seed[rows], 4)
        phase = 2 * np.pi * random[:, :2]
        waves = np.sin(self.time[rows][:, None] * (0.2 + 0.8 * random[:, 2:]) + phase)
        return waves.mean(1)

    def advance(self, rows: np.ndarray, actions: np.ndarray) -> Advance:
        self.time[rows] -= 1  # the lane as it was when the action was chosen
        bend = self.curvature(rows)
        self.time[rows] += 1
        turned = self.SPEED * (actions.reshape(len(rows)).astype(np.float64) - bend)
        self.heading[rows] = np.clip(self.heading[rows] + turned, -1.5, 1.5)
        self.offset[rows] += self.SPEED * np.sin(self.heading[rows])
        off = np.abs(self.offset[rows]) > 1.0
        over = self.time[rows] >= self.length
        return np.where(off, 0.0, 1.0 / self.length), off | over, over & ~off

    def look(self, rows: np.ndarray) -> Arrays:
        seen = np.stack([self.offset[rows], self.heading[rows], self.curvature(rows)], 1)
        return {"obs": seen.astype(np.float32)}

    def expert(self, rows: np.ndarray) -> np.ndarray:
        back = 1.5 * self.heading[rows] + 0.8 * self.offset[rows]
        return np.clip(self.curvature(rows) - back, -2.0, 2.0)[:, None]
