"""The sum on the CPU: one pass, time backwards, the carried row in a buffer of its own (see gae)."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from rollbus_accel.kernels.arrays import flags, float32
from rollbus_accel.kernels.loops import BLOCK, FASTMATH

Array = np.ndarray


@njit(cache=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def _discounted_return(reward: Array, valid: Array, done: Array, discount: np.float32, total: Array) -> None:
    num_steps, num_rows = reward.shape
    zero = np.float32(0.0)
    carry = np.empty(min(num_rows, BLOCK), np.float32)
    for start in range(0, num_rows, BLOCK):
        carry[:] = zero
        for t in range(num_steps - 1, -1, -1):
            part = slice(start, start + BLOCK)
            r, counts, last, y = reward[t, part], valid[t, part], done[t, part], total[t, part]
            for n in range(len(y)):
                later = zero if last[n] else discount * carry[n]
                carry[n] = later + (r[n] if counts[n] else zero)
                y[n] = carry[n] if counts[n] else zero


def discounted_return(reward: Tensor, valid: Tensor, done: Tensor, discount: float) -> Tensor:
    """As the public function, of [T, N]."""
    total = torch.empty(reward.shape, dtype=torch.float32)
    if total.numel():
        _discounted_return(float32(reward), flags(valid), flags(done), np.float32(discount), total.numpy())
    return total
