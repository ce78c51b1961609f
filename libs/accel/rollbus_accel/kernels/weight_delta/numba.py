"""Changed elements on the CPU, in one pass; the tensors are flat and viewed as integers."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

Array = np.ndarray
#: Elements compared at once; where none changed, which is the rule, nothing else is done.
BLOCK = 32


@njit(cache=True, nogil=True)
def _differs(old: Array, new: Array, start: int) -> bool:
    different = new[start] ^ new[start]
    for i in range(start, start + BLOCK):
        different |= old[i] ^ new[i]
    return different != 0


@njit(cache=True, nogil=True)
def _find(old: Array, new: Array, indices: Array, values: Array) -> int:
    count, num = 0, len(new)
    whole = num // BLOCK * BLOCK
    for start in range(0, whole, BLOCK):
        if _differs(old, new, start):
            for i in range(start, start + BLOCK):
                indices[count], values[count] = i, new[i]
                count += old[i] != new[i]
    for i in range(whole, num):
        if old[i] != new[i]:
            indices[count], values[count] = i, new[i]
            count += 1
    return count


@njit(cache=True, nogil=True)
def _apply(target: Array, indices: Array, values: Array) -> None:
    for k in range(len(indices)):
        target[indices[k]] = values[k]


def weight_delta(old: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """As the reference."""
    # Room for every element, of which the system gives only the pages that are written; one more, because a
    # candidate is written before it is known to have changed.
    indices = np.empty(len(new) + 1, np.int32)
    before, after = old.contiguous().numpy(), new.contiguous().numpy()
    values = np.empty(len(new) + 1, after.dtype)
    count = _find(before, after, indices, values)
    return torch.from_numpy(indices[:count].copy()), torch.from_numpy(values[:count].copy())


def apply_delta(target: Tensor, indices: Tensor, values: Tensor) -> None:
    """As the reference."""
    _apply(target.numpy(), indices.contiguous().numpy(), values.contiguous().numpy())
