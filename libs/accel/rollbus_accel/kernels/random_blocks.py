# mypy: allow-untyped-defs
"""Noise (see `philox`) for Triton kernels. Importing this needs triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def uniform(bits):
    """float32 in (0, 1) of 23 of the ``bits`` uint32."""
    return ((bits >> 9).to(tl.float32) + 0.5) * 1.1920928955078125e-07


@triton.jit
def _circle(turn):
    """(cos, sin) of ``turn`` in (0, 1) turns, by series of the half angle.

    tl.cos and tl.sin reserve stack memory for arguments that are never met here.
    """
    x = (turn - 0.5) * 3.141592653589793
    y = x * x
    s = 1.0 + y * (-1 / 6 + y * (1 / 120 + y * (-1 / 5040 + y * (1 / 362880 - y * (1 / 39916800)))))
    c = 1.0 + y * (-1 / 2 + y * (1 / 24 + y * (-1 / 720 + y * (1 / 40320 - y * (1 / 3628800)))))
    c = c + y * y * y * y * y * y * (1 / 479001600)
    s = s * x
    return 2.0 * s * s - 1.0, -2.0 * s * c


@triton.jit
def normals(seeds, counters):
    """Four blocks like ``counters`` int32, one per quarter of the columns (Box and Muller, 1958)."""
    b0, b1, b2, b3 = tl.randint4x(seeds, counters)
    cos, sin = _circle(uniform(b1))
    cos_2, sin_2 = _circle(uniform(b3))
    radius, radius_2 = tl.sqrt(-2.0 * tl.log(uniform(b0))), tl.sqrt(-2.0 * tl.log(uniform(b2)))
    return radius * cos, radius * sin, radius_2 * cos_2, radius_2 * sin_2
