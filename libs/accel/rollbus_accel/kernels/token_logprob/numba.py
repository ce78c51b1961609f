"""Log-probability and entropy of one id per row on the CPU: loops over a row that stays in the cache."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from rollbus_accel.kernels.arrays import flags, float32
from rollbus_accel.kernels.loops import FASTMATH, exp

Array = np.ndarray
#: Below this a logit's exponential is 0 in float32, and in float64 nothing of the sum.
_LEAST = np.float32(-87.0)


@njit(cache=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def _forward(
    logits: Array,
    ids: Array,
    temperature: Array,
    mask: Array,
    log_prob: Array,
    entropy: Array,
    log_sum: Array,
) -> None:
    zero = np.float32(0.0)
    num_ids = logits.shape[1]
    for n in range(len(ids)):
        if not mask[n]:
            log_prob[n] = entropy[n] = log_sum[n] = zero
            continue
        row, inverse = logits[n], np.float32(1.0) / temperature[n]
        top = row[0]
        for i in range(num_ids):
            top = row[i] if row[i] > top else top
        total, weighted = zero, zero
        for i in range(num_ids):
            z = (row[i] - top) * inverse
            e = exp(z) if z > _LEAST else zero
            total += e
            weighted += e * (z if z > _LEAST else zero)
        spread = np.log(total)
        log_prob[n] = (row[ids[n]] - top) * inverse - spread
        entropy[n] = spread - weighted / total
        log_sum[n] = top * inverse + spread


@njit(cache=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def _backward(
    logits: Array, ids: Array, temperature: Array, mask: Array, log_sum: Array, entropy: Array,
    to_log_prob: Array, to_entropy: Array, grad: Array,
) -> None:  # fmt: skip
    zero = np.float32(0.0)
    num_ids = logits.shape[1]
    for n in range(len(ids)):
        row, out, inverse = logits[n], grad[n], np.float32(1.0) / temperature[n]
        if not mask[n]:
            out[:] = zero
            continue
        lp, h = to_log_prob[n] * inverse, to_entropy[n] * inverse
        for i in range(num_ids):
            z = row[i] * inverse - log_sum[n]
            p = exp(z) if z > _LEAST else zero
            out[i] = -p * (lp + h * ((z if z > _LEAST else zero) + entropy[n]))
        out[ids[n]] += lp


def token_logprob(
    logits: Tensor, ids: Tensor, temperature: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """As the reference."""
    _check(ids, mask, logits.shape[1])
    log_prob, entropy, log_sum = (torch.empty(len(logits), dtype=torch.float32) for _ in range(3))
    if len(logits):
        _forward(
            float32(logits), ids.contiguous().numpy(), float32(temperature), flags(mask), log_prob.numpy(),
            entropy.numpy(), log_sum.numpy(),
        )  # fmt: skip
    return log_prob, entropy, log_sum


def token_logprob_backward(
    logits: Tensor,
    ids: Tensor,
    temperature: Tensor,
    mask: Tensor,
    log_sum: Tensor,
    entropy: Tensor,
    grad_log_prob: Tensor,
    grad_entropy: Tensor,
) -> Tensor:
    """As the reference."""
    grad = torch.empty(logits.shape, dtype=torch.float32)
    if len(logits):
        _backward(
            float32(logits), ids.contiguous().numpy(), float32(temperature), flags(mask), float32(log_sum),
            float32(entropy), float32(grad_log_prob), float32(grad_entropy), grad.numpy(),
        )  # fmt: skip
    return grad.to(logits.dtype)


def _check(ids: Tensor, mask: Tensor, num_ids: int) -> None:
    """IndexError for an id outside, as torch's gather raises."""
    outside = mask & ((ids < 0) | (ids >= num_ids))
    if outside.any():
        raise IndexError(f"token_logprob: id {int(ids[outside][0])} is outside [0, {num_ids})")
