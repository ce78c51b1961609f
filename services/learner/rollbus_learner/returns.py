"""n-step returns: the rewards of a stretch of decisions, up to where a bootstrap follows.

Symbols: S samples, n decisions of a stretch, C environment steps of a decision.
"""

from __future__ import annotations

import numpy as np

from rollbus_learner.stretches import Stretches


class Returns:
    """``reward`` [S, n, C] and ``steps`` int [S, n], zeros beyond the ``num`` [S] decisions."""

    def __init__(self, stretches: Stretches, n_step: int, width: int) -> None:
        self.num = np.minimum(stretches.num, n_step)
        self.reward = np.zeros((len(self.num), n_step, width), np.float32)
        self.steps = np.zeros((len(self.num), n_step), np.int32)
        for ahead in range(n_step):
            place = np.flatnonzero(self.num > ahead)
            for part in stretches.parts(place, np.full(len(place), ahead)):
                at = (part.cell, part.time, part.row)
                self.reward[part.place, ahead] = part.view.columns["reward"][at]
                self.steps[part.place, ahead] = part.view.columns["num_steps"][at]

    def joined(self) -> tuple[np.ndarray, np.ndarray]:
        """``n_step_reward`` [S, n C], executed steps without gaps, and ``n_step_num`` int32 [S]."""
        num_samples, n_step, width = self.reward.shape
        taken = np.arange(n_step) < self.num[:, None]
        steps = np.where(taken, self.steps, 0)
        executed = np.arange(width) < steps[..., None]
        joined = np.zeros((num_samples, n_step * width), np.float32)
        sample, ahead, step = np.nonzero(executed)
        before = np.cumsum(steps, 1) - steps
        joined[sample, before[sample, ahead] + step] = self.reward[sample, ahead, step]
        return joined, steps.sum(1, dtype=np.int32)
