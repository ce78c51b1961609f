"""Intervals for what evaluations find."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

_Z = 1.959964
#: Resamples of a bootstrap.
DRAWS = 10_000


def wilson(successes: int, num: int) -> tuple[float, float]:
    """95 % interval of a rate (Wilson 1927): stays in [0, 1], and means something at 0 and 1."""
    if not num:
        return 0.0, 1.0
    rate, z2 = successes / num, _Z * _Z
    centre = (rate + z2 / (2 * num)) / (1 + z2 / num)
    half = _Z * math.sqrt(rate * (1 - rate) / num + z2 / (4 * num * num)) / (1 + z2 / num)
    return max(0.0, centre - half) if successes else 0.0, min(1.0, centre + half) if successes < num else 1.0


def paired_gain(
    before: Sequence[Sequence[float]], after: Sequence[Sequence[float]], seed: int = 0
) -> tuple[float, float, float]:
    """Mean of ``after - before`` [S seeds][E episodes] and its 95 % bootstrap interval.

    Seeds are drawn with replacement, then the episodes of each: what differs between seeds counts.
    """
    gain = np.asarray(after, np.float64) - np.asarray(before, np.float64)
    if gain.ndim != 2 or not gain.size:
        raise ValueError(f"episodes by seed, [S][E], are needed; came {list(gain.shape)}")
    generator = np.random.default_rng(seed)
    num_seeds, num = gain.shape
    of_seeds = generator.integers(0, num_seeds, (DRAWS, num_seeds))
    means = np.empty(DRAWS)
    for draw in range(DRAWS):
        of_episodes = generator.integers(0, num, (num_seeds, num))
        means[draw] = gain[of_seeds[draw][:, None], of_episodes].mean()
    low, high = np.quantile(means, (0.025, 0.975))
    return float(gain.mean()), float(low), float(high)
