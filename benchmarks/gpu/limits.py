"""What the device can do at most: bytes copied and matrices multiplied per second."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gpu.clock import Clock

COPY_BYTES, QUICK_COPY_BYTES = 1 << 30, 1 << 24
MATRIX, QUICK_MATRIX = 8192, 384
DTYPES = (torch.bfloat16, torch.float32)


@dataclass(frozen=True)
class Limits:
    """Measured on the device, in this run."""

    #: Read and written, per second.
    copy_bytes_per_s: float
    #: dtype -> multiplications and additions per second.
    matmul_flops_per_s: dict[str, float]


def measure(clock: Clock) -> Limits:
    """Copies and products large enough that nothing stays in a cache."""
    size = QUICK_COPY_BYTES if clock.quick else COPY_BYTES
    source = torch.zeros(size, dtype=torch.uint8, device=clock.device)
    target = torch.empty_like(source)
    copy_s = clock.seconds({"copy": lambda: target.copy_(source)})["copy"]
    rates = {str(dtype)[6:]: _matmul(clock, dtype) for dtype in DTYPES}
    return Limits(2 * size / copy_s, rates)


def _matmul(clock: Clock, dtype: torch.dtype) -> float:
    size = QUICK_MATRIX if clock.quick else MATRIX
    left = torch.randn(size, size, device=clock.device).to(dtype)
    right, out = torch.randn_like(left), torch.empty_like(left)
    seconds = clock.seconds({"matmul": lambda: torch.mm(left, right, out=out)})["matmul"]
    return 2 * size**3 / seconds
