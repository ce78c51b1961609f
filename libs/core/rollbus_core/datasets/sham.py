"""What a sham arm learns from: the same numbers, each of them at the place of another."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from rollbus_core.datasets.features import REWARD
from rollbus_core.datasets.reader import Dataset
from rollbus_wire.errors import ConfigError


def permuted(columns: Sequence[np.ndarray], seed: int) -> list[np.ndarray]:
    """``columns``, [T] of each episode, with all of their entries mixed up."""
    mixed = np.random.default_rng(seed).permutation(np.concatenate(columns))
    return np.split(mixed, np.cumsum([len(column) for column in columns])[:-1])


def permuted_rewards(dataset: Dataset, chosen: Collection[int], seed: int) -> dict[int, np.ndarray]:
    """Episode -> float32 [T], for all episodes ``chosen``. Raises `ConfigError` without rewards."""
    if REWARD not in dataset.features:
        raise ConfigError(f"{dataset.folder} has no rewards; leave data.sources: permute_rewards at 0")
    rewards = {
        rows.index: rows.columns[REWARD][:, 0].astype(np.float32)
        for rows in dataset.rows([REWARD])
        if rows.index in chosen
    }
    return dict(zip(rewards, permuted(list(rewards.values()), seed)))
