"""What numba loops share, written so that the compiler vectorises it. Importing this needs numba."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

#: All of fast maths but the promise that there is no NaN and no infinity: masked numbers may be NaN.
FASTMATH = {"contract", "nsz", "arcp", "reassoc", "afn"}
#: Columns that go backwards through time together: the carried rows stay in the first-level cache, and
#: reads are long enough for the prefetcher (shorter blocks were up to 30 % slower).
BLOCK = 4096

_LOG2_E = np.float32(1.4426950408889634)
_LN2_HIGH = np.float32(0.693145751953125)
_LN2_LOW = np.float32(1.428606765330187e-06)
_HALF = np.float32(0.5)
_ONE = np.float32(1.0)
_LARGEST, _SMALLEST = np.float32(88.0), np.float32(-87.0)
#: Minimax polynomial of (exp(r) - 1 - r) / r^2 on [-ln2/2, ln2/2], highest power first (Cephes, expf.c).
_P0, _P1, _P2, _P3, _P4, _P5 = (
    np.float32(p)
    for p in (
        1.9875691500e-4,
        1.3981999507e-3,
        8.3334519073e-3,
        4.1665795894e-2,
        1.6666665459e-1,
        5.0000001201e-1,
    )
)


@intrinsic
def _float_of_bits(typingctx: Any, bits: Any) -> Any:
    """The float32 that an int32 is the bits of."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.int32), generate


@njit(inline="always", fastmath=FASTMATH)
def at_most(x: np.float32, limit: np.float32) -> np.float32:
    """The smaller of both; NaN stays NaN, where ``min`` may hide it."""
    return limit if x > limit else x


@njit(inline="always", fastmath=FASTMATH)
def exp(x: np.float32) -> np.float32:
    """``e^x`` to 2 units in the last place, of ``x`` held within [-87, 88], where float32 is normal."""
    x = at_most(x, _LARGEST)
    x = _SMALLEST if x < _SMALLEST else x
    n = np.floor(x * _LOG2_E + _HALF)
    r = x - n * _LN2_HIGH - n * _LN2_LOW
    p = ((((_P0 * r + _P1) * r + _P2) * r + _P3) * r + _P4) * r + _P5
    scale = _float_of_bits(np.int32((np.int32(n) + np.int32(127)) << np.int32(23)))  # type: ignore
    return (p * r * r + r + _ONE) * scale
