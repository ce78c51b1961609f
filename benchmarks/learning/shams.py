"""Rewards that must teach nothing, as sources of `learner.rewards`: who learns from them has a defect."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Columns = Mapping[str, NDArray[np.generic]]

#: One generator per learner process: another order at each update, the same ones in each run.
_generator = np.random.default_rng(7)


def shuffled(columns: Columns) -> NDArray[np.float32]:
    """float32 [...]: added to the rewards, the outcomes of the batch's episodes change places."""
    given = _given(columns)
    ends = columns["terminated"].astype(bool) | columns["truncated"].astype(bool)
    moved = given.copy()
    moved[ends] = _generator.permutation(given[ends])
    return moved - given


def mixed(columns: Columns) -> NDArray[np.float32]:
    """float32 [...]: added to the rewards, those of all decisions of the batch change places."""
    given = _given(columns)
    return _generator.permutation(given.reshape(-1)).reshape(given.shape) - given


def nothing(columns: Columns) -> NDArray[np.float32]:
    """float32 [...]: added to the rewards, all are 0: each member of a group is as good as the next."""
    return -_given(columns)


def _given(columns: Columns) -> NDArray[np.float32]:
    """Rewards of decisions, float32 [...], summed over the steps that each executed."""
    reward = columns["reward"].astype(np.float32)
    if reward.ndim > columns["terminated"].ndim:
        reward = reward.sum(-1)
    return reward
