"""V-trace on the CPU: one pass, time backwards, carried values in buffers of their own (see gae)."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from rollbus_accel.kernels.arrays import flags, float32
from rollbus_accel.kernels.loops import BLOCK, FASTMATH, at_most, exp
from rollbus_accel.kernels.vtrace.reference import MAX_LOG_RATIO

Array = np.ndarray

MAX = np.float32(MAX_LOG_RATIO)


@njit(cache=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def _vtrace(
    log_ratio: Array,
    reward: Array,
    discount: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    done: Array,
    valid: Array,
    lam: np.float32,
    rho_clip: np.float32,
    c_clip: np.float32,
    advantage: Array,
    target: Array,
) -> None:
    num_steps, num_rows = reward.shape
    zero, width = np.float32(0.0), min(num_rows, BLOCK)
    # Of the decision that follows: vs - V, vs, and whether it counts.
    excess, later, alive = np.empty(width, np.float32), np.empty(width, np.float32), np.empty(width, np.bool_)
    for start in range(0, num_rows, BLOCK):
        excess[:] = zero
        later[:] = zero
        alive[:] = False
        for t in range(num_steps - 1, -1, -1):
            part = slice(start, start + BLOCK)
            r, g, v, after = reward[t, part], discount[t, part], value[t, part], next_value[t, part]
            ends, last, counts = terminated[t, part], done[t, part], valid[t, part]
            x, a, y = log_ratio[t, part], advantage[t, part], target[t, part]
            for n in range(len(a)):
                ratio = exp(at_most(x[n], MAX))
                rho, trace = at_most(ratio, rho_clip), lam * at_most(ratio, c_clip)
                follow = zero if ends[n] else after[n]
                keep = alive[n] & (not last[n])
                gain = rho * (r[n] + g[n] * follow - v[n])
                gain += g[n] * trace * excess[n] if keep else zero
                better = rho * (r[n] + g[n] * (later[n] if keep else follow) - v[n])
                a[n] = better if counts[n] else zero
                excess[n] = gain if counts[n] else zero
                later[n] = y[n] = gain + v[n] if counts[n] else zero
                alive[n] = counts[n]


def vtrace(
    log_ratio: Tensor,
    reward: Tensor,
    discount: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    done: Tensor,
    valid: Tensor,
    lam: float,
    rho_clip: float,
    c_clip: float,
) -> tuple[Tensor, Tensor]:
    """As the public function."""
    advantage = torch.empty(reward.shape, dtype=torch.float32)
    target = torch.empty(reward.shape, dtype=torch.float32)
    if advantage.numel():
        numbers = [float32(x) for x in (log_ratio, reward, discount, value, next_value)]
        masks = [flags(x) for x in (terminated, done, valid)]
        limits = [np.float32(x) for x in (lam, rho_clip, c_clip)]
        _vtrace(*numbers, *masks, *limits, advantage.numpy(), target.numpy())  # type: ignore
    return advantage, target
