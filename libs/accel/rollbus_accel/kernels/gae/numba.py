"""GAE on the CPU: one pass, time backwards, the carry of a row of columns kept beside the output."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from rollbus_accel.kernels.arrays import flags, float32

Array = np.ndarray


@njit(cache=True, nogil=True, fastmath={"contract", "nsz", "arcp", "reassoc"}, error_model="numpy")
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
    for n in range(num_rows):
        ok = valid[-1, n]
        follow = zero if terminated[-1, n] else next_value[-1, n]
        delta = reward[-1, n] + discount[-1, n] * follow - value[-1, n]
        advantage[-1, n] = delta if ok else zero
        target[-1, n] = delta + value[-1, n] if ok else zero
    for t in range(num_steps - 2, -1, -1):
        for n in range(num_rows):
            ok, v, g = valid[t, n], value[t, n], discount[t, n]
            follow = zero if terminated[t, n] else next_value[t, n]
            decay = g * lam if valid[t + 1, n] & (not done[t, n]) else zero
            total = reward[t, n] + g * follow - v + decay * advantage[t + 1, n]
            advantage[t, n] = total if ok else zero
            target[t, n] = total + v if ok else zero


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
        _gae(*numbers, *masks, np.float32(lam), advantage.numpy(), target.numpy())
    return advantage, target
