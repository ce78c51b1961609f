"""Group statistics on the CPU: three short loops per group, which stays in the first-level cache."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from rollbus_accel.kernels.arrays import flags, float32
from rollbus_accel.kernels.group_normalise.reference import EPS
from rollbus_accel.kernels.loops import FASTMATH

Array = np.ndarray

SMALL, INFINITE = np.float32(EPS), np.float32(np.inf)


@njit(cache=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def _group_normalise(score: Array, valid: Array, scale: bool, result: Array) -> None:
    zero, one = np.float32(0.0), np.float32(1.0)
    for group in range(len(score)):
        s, counts, y = score[group], valid[group], result[group]
        total, num, low, high = np.float64(0.0), 0, INFINITE, -INFINITE
        for i in range(len(s)):
            total += s[i] if counts[i] else zero
            low = min(low, s[i] if counts[i] else INFINITE)
            high = max(high, s[i] if counts[i] else -INFINITE)
            num += counts[i]
        mean = np.float32(total / max(num, 1))
        square = zero
        for i in range(len(s)):
            centred = s[i] - mean if counts[i] else zero
            square += centred * centred
        std = np.sqrt(square / np.float32(max(num - 1, 1)))
        factor = one / (std + SMALL) if scale else one
        if not (high > low and std > SMALL * max(one, abs(low), abs(high))):
            factor = zero
        for i in range(len(s)):
            y[i] = (s[i] - mean) * factor if counts[i] else zero


def group_normalise(score: Tensor, valid: Tensor, scale: bool) -> Tensor:
    """As the public function."""
    result = torch.empty(score.shape, dtype=torch.float32)
    if result.numel():
        _group_normalise(float32(score), flags(valid), scale, result.numpy())
    return result
