"""Counter-based random numbers, the same integers in every flavour (Salmon et al., 2011, Philox 4x32-10).

Row i's numbers are a function of ``seeds[i]`` and the column alone, so a sample does not depend on its
neighbours in the batch. One call of the generator gives four numbers. Columns are dealt to them in
quarters: of ``num`` columns, column k is number ``k // q`` of counter ``k % q``, with ``q = ceil(num / 4)``.
So a kernel that computes four columns at a distance of q wastes nothing and shuffles nothing.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = 0xFFFFFFFF
_ROUNDS = 10


def quarter(num: int) -> int:
    """Counters used for ``num`` columns."""
    return -(-num // 4)


def philox(seeds: Tensor, counters: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four int64 tensors of values in [0, 2^32): key ``seeds``, counter (``counters``, 0, 0, 0).

    ``seeds`` int64 or uint64 and ``counters`` int64 in [0, 2^32) broadcast.
    """
    key = seeds.view(torch.int64)
    zero = torch.zeros_like(counters + key)
    return _rounds((counters + zero, zero, zero, zero), (key & _LOW, (key >> 32) & _LOW))


def _rounds(
    counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        high_0, low_0 = _multiply(_MULTIPLIERS[0], c0)
        high_1, low_1 = _multiply(_MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high_1 ^ c1 ^ k0, low_1, high_0 ^ c3 ^ k1, low_0
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return c0, c1, c2, c3


def _multiply(a: int, b: Tensor) -> tuple[Tensor, Tensor]:
    """High and low 32 bits of a product; the int64 that overflows has the right bits all the same."""
    product = a * b
    return (product >> 32) & _LOW, product & _LOW


def uniform(seeds: Tensor, num: int) -> Tensor:
    """float32 [B, num] in (0, 1), of 23 bits, so neither 0 nor 1 is among them."""
    counters = torch.arange(quarter(num), device=seeds.device)
    bits = torch.cat(philox(seeds[:, None], counters[None]), dim=1)[:, :num]
    return ((bits >> 9).float() + 0.5) * 2.0**-23


def normal(seeds: Tensor, num: int) -> Tensor:
    """float32 [B, num], standard normal by Box and Muller (1958): numbers 0, 1 of a counter, and 2, 3."""
    q = quarter(num)
    u = uniform(seeds, 4 * q).view(len(seeds), 2, 2, q)
    radius, angle = (-2.0 * u[:, :, 0].log()).sqrt(), 2.0 * math.pi * u[:, :, 1]
    both = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=2)
    return both.reshape(len(seeds), 4 * q)[:, :num]
