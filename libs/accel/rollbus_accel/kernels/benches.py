"""What ``BENCH`` in the ``cases.py`` of an op holds: sizes worth timing, and the least work they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from rollbus_accel.kernels.cases import Arguments


@dataclass(frozen=True)
class Bench:
    """One size of one op; see benchmarks/gpu_suite.py."""

    name: str
    #: Arguments of the public function ``function`` on the CPU, numbers in the dtype given.
    make: Callable[[torch.dtype], Arguments]
    #: Bytes that must be read and written, for elements of so many bytes.
    num_bytes: Callable[[int], int]
    #: Multiplications and additions of matrices.
    num_flops: int = 0
    function: str = ""
    dtypes: tuple[torch.dtype, ...] = (torch.bfloat16, torch.float32)
    #: A size with less work, for devices that are slow; the others are for accelerators.
    quick: bool = False
    #: Arguments whose gradients are taken where forward and backward are timed together.
    gradients: tuple[str, ...] = ()
