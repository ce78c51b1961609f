# mypy: allow-untyped-defs
"""Masked sums on a GPU: a pass that leaves (sum, deviation, count) of each block, and one that joins them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rollbus_accel.kernels import launch
from rollbus_accel.kernels.base import Variant

BLOCK = 2048
#: Programs at most, each of which goes over several blocks; their results are joined by one.
MOST_PROGRAMS = 1024


@triton.jit
def _join(total, deviation, count, other_total, other_deviation, other_count):
    """Statistics of two sets together (Chan, Golub, LeVeque, 1983)."""
    joint = tl.maximum(count + other_count, 1.0)
    shift = other_total / tl.maximum(other_count, 1.0) - total / tl.maximum(count, 1.0)
    both = deviation + other_deviation + shift * shift * count * other_count / joint
    return total + other_total, both, count + other_count


@triton.jit
def _blocks(x_ptr, mask_ptr, partial_ptr, num, num_programs, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    local = tl.arange(0, BLOCK)
    total = tl.zeros((), tl.float32)
    deviation = tl.zeros((), tl.float32)
    count = tl.zeros((), tl.float32)
    for start in range(program * BLOCK, num, num_programs * BLOCK):
        at = start + local.to(tl.int64)
        mask = tl.load(mask_ptr + at, mask=at < num, other=0) != 0
        x = tl.where(mask, tl.load(x_ptr + at, mask=at < num, other=0.0).to(tl.float32), 0.0)
        block_count = tl.sum(mask.to(tl.float32))
        block_total = tl.sum(x)
        centred = tl.where(mask, x - block_total / tl.maximum(block_count, 1.0), 0.0)
        total, deviation, count = _join(
            total, deviation, count, block_total, tl.sum(centred * centred), block_count
        )
    tl.store(partial_ptr + program, total)
    tl.store(partial_ptr + num_programs + program, deviation)
    tl.store(partial_ptr + 2 * num_programs + program, count)


@triton.jit
def _finish(partial_ptr, total_ptr, deviation_ptr, count_ptr, num_programs, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    mask = at < num_programs
    totals = tl.load(partial_ptr + at, mask=mask, other=0.0)
    deviations = tl.load(partial_ptr + num_programs + at, mask=mask, other=0.0)
    counts = tl.load(partial_ptr + 2 * num_programs + at, mask=mask, other=0.0)
    total = tl.sum(totals)
    count = tl.sum(counts.to(tl.int64))
    mean = total / tl.maximum(count.to(tl.float32), 1.0)
    shifts = tl.where(counts > 0.0, totals / tl.maximum(counts, 1.0) - mean, 0.0)
    tl.store(total_ptr, total)
    tl.store(deviation_ptr, tl.sum(deviations + counts * shifts * shifts))
    tl.store(count_ptr, count)


def masked_reduce(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As the public function."""
    total = torch.empty((), dtype=torch.float32, device=x.device)
    deviation, count = torch.empty_like(total), torch.empty_like(total, dtype=torch.int64)
    programs = max(1, min(MOST_PROGRAMS, launch.ceil_div(x.numel(), BLOCK)))
    partial = torch.empty((3, programs), dtype=torch.float32, device=x.device)
    warp_size = launch.properties(x.device).warp_size
    num_warps = launch.num_warps(BLOCK, warp_size)
    _blocks[(programs,)](
        x.contiguous(), mask.contiguous(), partial, x.numel(), programs, BLOCK=BLOCK, num_warps=num_warps
    )
    block = launch.power_of_two(programs)
    num_warps = launch.num_warps(block, warp_size)
    _finish[(1,)](partial, total, deviation, count, programs, BLOCK=block, num_warps=num_warps)
    return total, deviation, count


def _variant(number: str) -> Variant:
    signature = {"x_ptr": f"*{number}", "mask_ptr": "*i1", "partial_ptr": "*fp32"}
    signature |= {"num": "i32", "num_programs": "i32"}
    return Variant(f"masked_reduce-{number}", _blocks, signature, {"BLOCK": BLOCK}, num_warps=8)


_JOINED = Variant(
    "masked_reduce-join",
    _finish,
    {
        "partial_ptr": "*fp32",
        "total_ptr": "*fp32",
        "deviation_ptr": "*fp32",
        "count_ptr": "*i64",
        "num_programs": "i32",
    },
    {"BLOCK": MOST_PROGRAMS},
)

VARIANTS = [_variant("fp32"), _variant("bf16"), _JOINED]
