"""Philox 4x32-10 (see `philox`) for numba loops. Importing this needs numba."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

_LOW, _SHIFT = np.uint64(0xFFFFFFFF), np.uint64(32)
_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_NINE, _HALF, _UNIT = np.uint64(9), np.float32(0.5), np.float32(2.0**-23)


@njit(inline="always")
def philox(seed: np.uint64, counter: np.uint64) -> Any:
    """Four uint64 of values in [0, 2^32)."""
    c0, c1, c2, c3 = counter, np.uint64(0), np.uint64(0), np.uint64(0)
    k0, k1 = seed & _LOW, seed >> _SHIFT
    for _ in range(10):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (p1 >> _SHIFT) ^ c1 ^ k0, p1 & _LOW, (p0 >> _SHIFT) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
    return c0, c1, c2, c3


@njit(inline="always")
def uniform(bits: np.uint64) -> np.float32:
    """float32 in (0, 1) of 23 bits."""
    return (np.float32(bits >> _NINE) + _HALF) * _UNIT
