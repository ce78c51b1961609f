# mypy: allow-untyped-defs
"""Changed elements of a tensor, in order: count per block, then write each block at its place."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rollbus_accel.kernels import launch
from rollbus_accel.kernels.base import Variant

BLOCK = 2048


@triton.jit
def count_kernel(old, new, counts, num, BLOCK: tl.constexpr):
    """Changed elements per block of BLOCK; the tensors are viewed as integers, so bits are compared."""
    block = tl.program_id(0)
    place = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < num
    changed = tl.load(old + place, mask=inside, other=0) != tl.load(new + place, mask=inside, other=0)
    tl.store(counts + block, tl.sum(changed.to(tl.int32), 0))


@triton.jit
def write_kernel(old, new, ends, indices, values, num, BLOCK: tl.constexpr):
    """Indices and values of the changed elements; ``ends`` are the cumulated counts."""
    block = tl.program_id(0)
    place = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < num
    value = tl.load(new + place, mask=inside, other=0)
    changed = tl.load(old + place, mask=inside, other=0) != value
    one = changed.to(tl.int32)
    start = tl.load(ends + block) - tl.sum(one, 0)
    target = start + tl.cumsum(one, 0) - one
    tl.store(indices + target, place.to(tl.int32), mask=changed)
    tl.store(values + target, value, mask=changed)


@triton.jit
def apply_kernel(target, indices, values, num, BLOCK: tl.constexpr):
    """``target[indices] = values``; the indices are distinct."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < num
    index = tl.load(indices + place, mask=inside, other=0)
    tl.store(target + index, tl.load(values + place, mask=inside, other=0), mask=inside)


def weight_delta(old: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """As the reference."""
    num = len(new)
    block, programs, num_warps = _launch(num, new.device)
    counts = torch.empty(programs, dtype=torch.int32, device=new.device)
    if num:
        count_kernel[(programs,)](old, new, counts, num, BLOCK=block, num_warps=num_warps)
    ends = counts.cumsum(0)
    changed = int(ends[-1]) if num else 0
    indices = torch.empty(changed, dtype=torch.int32, device=new.device)
    values = torch.empty(changed, dtype=new.dtype, device=new.device)
    if changed:
        write_kernel[(programs,)](old, new, ends, indices, values, num, BLOCK=block, num_warps=num_warps)
    return indices, values


def apply_delta(target: Tensor, indices: Tensor, values: Tensor) -> None:
    """As the reference."""
    num = len(indices)
    if num:
        block, programs, num_warps = _launch(num, target.device)
        apply_kernel[(programs,)](
            target, indices.contiguous(), values.contiguous(), num, BLOCK=block, num_warps=num_warps
        )


def _launch(num: int, device: torch.device) -> tuple[int, int, int]:
    """(elements of a block, blocks, warps)."""
    block = launch.block(num, most=BLOCK)
    warp_size = launch.properties(device).warp_size
    return block, launch.ceil_div(num, block), launch.num_warps(block, warp_size, per_thread=8)


def _variants(number: str) -> list[Variant]:
    pair = {"old": f"*{number}", "new": f"*{number}"}
    found = {"indices": "*i32", "values": f"*{number}", "num": "i32"}
    block, _, num_warps = _launch(BLOCK, torch.device("cpu"))
    return [
        Variant(f"{name}-{number}", kernel, signature, {"BLOCK": block}, num_warps)
        for name, kernel, signature in (
            ("count", count_kernel, pair | {"counts": "*i32", "num": "i32"}),
            ("write", write_kernel, pair | {"ends": "*i64"} | found),
            ("apply", apply_kernel, {"target": f"*{number}"} | found),
        )
    ]


VARIANTS = [variant for number in ("i16", "i32") for variant in _variants(number)]
