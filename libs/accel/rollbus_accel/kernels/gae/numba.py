"""GAE on the CPU: one pass, time backwards.

What is carried lies in a buffer of its own: a loop that reads the output row it wrote before cannot be
proved free of overlap, and then is not vectorised.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from rollbus_accel.kernels.arrays import flags, float32
from rollbus_accel.kernels.loops import BLOCK, FASTMATH

Array = np.ndarray


@njit(cache=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def _gae(
    reward: Array,
    discount: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    done: Array,
    valid: Array,
    lam: np.float32,
    advantage: Array,
    target: Array,
) -> None:
    num_steps, num_rows = reward.shape
    zero = np.float32(0.0)
    carry = np.empty(min(num_rows, BLOCK), np.float32)
    for start in range(0, num_rows, BLOCK):
        carry[:] = zero
        for t in range(num_steps - 1, -1, -1):
            part = slice(start, start + BLOCK)
            r, g, v, after = reward[t, part], discount[t, part], value[t, part], next_value[t, part]
            ends, last, counts = terminated[t, part], done[t, part], valid[t, part]
            a, y = advantage[t, part], target[t, part]
            for n in range(len(a)):
                follow = zero if ends[n] else after[n]
                decay = zero if last[n] else g[n] * lam
                total = r[n] + g[n] * follow - v[n] + decay * carry[n]
                # What is not valid hands on 0, so nothing crosses it.
                total = total if counts[n] else zero
                carry[n] = a[n] = total
                y[n] = total + v[n] if counts[n] else zero


def gae(
    reward: Tensor,
    discount: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    done: Tensor,
    valid: Tensor,
    lam: float,
) -> tuple[Tensor, Tensor]:
    """As the public function."""
    advantage = torch.empty(reward.shape, dtype=torch.float32)
    target = torch.empty(reward.shape, dtype=torch.float32)
    if advantage.numel():
        numbers = [float32(x) for x in (reward, discount, value, next_value)]
        masks = [flags(x) for x in (terminated, done, valid)]
        _gae(*numbers, *masks, np.float32(lam), advantage.numpy(), target.numpy())  # type: ignore
    return advantage, target
