"""The loss on the CPU: every sample is read once, and its slopes are written with its losses."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from rollbus_accel.kernels.arrays import flags, float32
from rollbus_accel.kernels.loops import FASTMATH, at_most, exp
from rollbus_accel.kernels.ppo_loss.reference import MAX_LOG_RATIO

Array = np.ndarray

MAX = np.float32(MAX_LOG_RATIO)
ZERO, ONE, TWO = np.float32(0.0), np.float32(1.0), np.float32(2.0)
INFINITE = np.float32(np.inf)
#: Samples that are summed in float32; their sums are added up in float64.
STRETCH = 1024


@njit(inline="always", fastmath=FASTMATH)
def _policy(log_ratio: np.float32, gain: np.float32, low: np.float32, high: np.float32, dual: np.float32):  # type: ignore[no-untyped-def]
    """(loss, its slope in the log-prob, ratio); ``low`` and ``high`` bound the ratio."""
    bounded = -at_most(-log_ratio, MAX)
    bounded = at_most(bounded, MAX)
    rho = exp(bounded)
    held = at_most(-at_most(-rho, -low), high)
    free, clipped = -gain * rho, -gain * held
    moves = (free > clipped) | (rho == held)
    loss = clipped if clipped > free else free
    bound = -dual * gain if gain < ZERO else INFINITE
    slope = free if moves & (loss <= bound) & (bounded == log_ratio) else ZERO
    return at_most(loss, bound), slope, rho, bounded


@njit(inline="always", fastmath=FASTMATH)
def _huber(error: np.float32, delta: np.float32):  # type: ignore[no-untyped-def]
    """(loss, slope) of one value error; ``delta`` is infinite where errors are squared."""
    size = abs(error)
    near = at_most(size, delta)
    return near * (TWO * size - near), TWO * (near if error > ZERO else -near)


@njit(inline="always", fastmath=FASTMATH)
def _value(value: np.float32, target: np.float32, old: np.float32, clip: np.float32, delta: np.float32):  # type: ignore[no-untyped-def]
    """(loss, its slope in the value); ``clip`` is infinite where the value is free."""
    loss, slope = _huber(value - target, delta)
    step = value - old
    bounded = -at_most(-at_most(step, clip), clip)
    held_loss, held_slope = _huber(old + bounded - target, delta)
    farther = (held_loss > loss) & (bounded != step)
    return (held_loss if farther else loss), (ZERO if farther else slope)


@njit(cache=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def _ppo_loss(
    log_prob: Array,
    value: Array,
    entropy: Array,
    old_log_prob: Array,
    advantage: Array,
    target: Array,
    old_value: Array,
    valid: Array,
    settings: Array,
    losses: Array,
    statistics: Array,
    log_prob_slope: Array,
    value_slope: Array,
) -> int:
    low, high, dual, value_clip, delta, value_coef, entropy_coef = settings
    sums, count = np.zeros(6), 0
    for start in range(0, len(valid), STRETCH):
        part = slice(start, start + STRETCH)
        counts = valid[part]
        # Selected where they are loaded: selecting results instead keeps the loops from being vectorised.
        lp, old_lp, gain, to_lp = log_prob[part], old_log_prob[part], advantage[part], log_prob_slope[part]
        policy, kl, outside = ZERO, ZERO, ZERO
        for i in range(len(counts)):
            ok = counts[i]
            change = (lp[i] if ok else ZERO) - (old_lp[i] if ok else ZERO)
            loss, slope, rho, log_ratio = _policy(change, gain[i] if ok else ZERO, low, high, dual)
            policy += loss
            to_lp[i] = slope
            kl += rho - log_ratio - ONE
            outside += ONE if (rho < low) | (rho > high) else ZERO
        v, y, old_v, h, to_v = value[part], target[part], old_value[part], entropy[part], value_slope[part]
        values, spread, total = ZERO, ZERO, ZERO
        for i in range(len(counts)):
            ok = counts[i]
            kept = v[i] if ok else ZERO
            loss, slope = _value(kept, y[i] if ok else ZERO, old_v[i] if ok else ZERO, value_clip, delta)
            values += loss
            to_v[i] = value_coef * slope
            spread += h[i] if ok else ZERO
            total += kept
            count += ok
        for place, part_sum in enumerate((policy, values, spread, kl, outside, total)):
            sums[place] += part_sum
    losses[0], losses[1], losses[2] = sums[0], value_coef * sums[1], -entropy_coef * sums[2]
    statistics[:] = sums[2:]
    return count


def ppo_loss(
    log_prob: Tensor,
    value: Tensor,
    entropy: Tensor,
    old_log_prob: Tensor,
    advantage: Tensor,
    target: Tensor,
    old_value: Tensor,
    valid: Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float,
    value_clip: float,
    huber_delta: float,
    value_coef: float,
    entropy_coef: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(losses, statistics, count, slope of each log-prob, slope of each value)."""
    columns = (log_prob, value, entropy, old_log_prob, advantage, target, old_value)
    limits = (dual_clip or np.inf, value_clip or np.inf, huber_delta or np.inf)
    settings = np.array((1.0 - clip_low, 1.0 + clip_high, *limits, value_coef, entropy_coef), np.float32)
    losses, statistics = torch.empty(3), torch.empty(4)
    slopes = [torch.empty(x.shape, dtype=torch.float32) for x in (log_prob, value)]
    count = _ppo_loss(  # type: ignore[call-arg]
        *(float32(x).reshape(-1) for x in columns),
        flags(valid).reshape(-1),
        settings,
        losses.numpy(),
        statistics.numpy(),
        *(x.numpy().reshape(-1) for x in slopes),
    )
    return losses, statistics, torch.tensor(count), slopes[0].to(log_prob.dtype), slopes[1].to(value.dtype)
