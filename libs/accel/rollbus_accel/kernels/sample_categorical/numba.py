"""Gumbel-max sampling on the CPU: row by row, which stays in the first-level cache."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from rollbus_accel.kernels.arrays import float32
from rollbus_accel.kernels.arrays import seeds as as_uint64
from rollbus_accel.kernels.loops import FASTMATH, exp
from rollbus_accel.kernels.random_loops import philox, uniform

Array = np.ndarray

ZERO = np.float32(0.0)


@njit(cache=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def _sample_categorical(logits: Array, seeds: Array, choice: Array, log_prob: Array, entropy: Array) -> None:
    num_rows, num_columns = logits.shape
    num_counters = (num_columns + 3) // 4
    score = np.empty(4 * num_counters, np.float32)
    for row in range(num_rows):
        x = logits[row]
        for q in range(num_counters):
            lanes = philox(seeds[row], np.uint64(q))
            for lane in range(4):
                score[lane * num_counters + q] = -np.log(uniform(lanes[lane]))
        largest = x.max()
        total, weighted = ZERO, ZERO
        for k in range(num_columns):
            weight = exp(x[k] - largest)
            total += weight
            weighted += weight * (x[k] - largest) if x[k] > -np.inf else ZERO
        # The smallest exponential time over its rate is the largest logit plus Gumbel noise.
        best, place = np.float32(np.inf), 0
        for k in range(num_columns):
            time = score[k] / exp(x[k] - largest)
            if time < best and x[k] > -np.inf:
                best, place = time, k
        normaliser = np.log(total)
        choice[row] = place
        log_prob[row] = x[place] - largest - normaliser
        entropy[row] = normaliser - weighted / total


def sample_categorical(logits: Tensor, seeds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As the public function."""
    num_rows = len(logits)
    choice = torch.empty(num_rows, dtype=torch.int64)
    log_prob = torch.empty(num_rows, dtype=torch.float32)
    entropy = torch.empty(num_rows, dtype=torch.float32)
    _sample_categorical(float32(logits), as_uint64(seeds), choice.numpy(), log_prob.numpy(), entropy.numpy())
    return choice, log_prob, entropy
