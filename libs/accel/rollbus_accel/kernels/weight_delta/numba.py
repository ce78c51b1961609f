"""Changed elements on the CPU, in one pass; the tensors are flat and viewed as integers."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

Array = np.ndarray
#: Words of eight bytes compared at once: a cache line. Where none changed, which is the rule, nothing else
#: is done.
LINE = 8


@njit(cache=True, nogil=True)
def _changes(old: Array, new: Array, start: int, end: int, indices: Array, values: Array, count: int) -> int:
    """Write the changes in [start, end); the new count."""
    for i in range(start, end):
        if old[i] != new[i]:
            indices[count], values[count] = i, new[i]
            count += 1
    return count


@njit(cache=True, nogil=True)
def _find(old_words: Array, new_words: Array, old: Array, new: Array, indices: Array, values: Array) -> int:
    count, per_word = 0, 8 // old.itemsize
    whole = len(old_words) // LINE * LINE
    for line in range(0, whole, LINE):
        different = np.uint64(0)
        for word in range(LINE):
            different |= old_words[line + word] ^ new_words[line + word]
        if different:
            for word in range(line, line + LINE):
                if old_words[word] != new_words[word]:
                    first = word * per_word
                    count = _changes(old, new, first, first + per_word, indices, values, count)
    return _changes(old, new, whole * per_word, len(old), indices, values, count)


@njit(cache=True, nogil=True)
def _apply(target: Array, indices: Array, values: Array) -> None:
    for k in range(len(indices)):
        target[indices[k]] = values[k]


def weight_delta(old: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """As the reference."""
    before, after = old.contiguous().numpy(), new.contiguous().numpy()
    # Room for every element, of which the system gives only the pages that are written.
    indices, values = np.empty(len(new), np.int32), np.empty(len(new), after.dtype)
    count = _find(_words(before), _words(after), before, after, indices, values)
    return torch.from_numpy(indices[:count].copy()), torch.from_numpy(values[:count].copy())


def _words(x: Array) -> Array:
    per_word = 8 // x.itemsize
    return x[: len(x) // per_word * per_word].view(np.uint64)


def apply_delta(target: Tensor, indices: Tensor, values: Tensor) -> None:
    """As the reference."""
    _apply(target.numpy(), indices.contiguous().numpy(), values.contiguous().numpy())
