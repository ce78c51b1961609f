# mypy: allow-untyped-defs
"""Group statistics on a GPU: several small groups per program, or one large one in blocks."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rollbus_accel.kernels import launch
from rollbus_accel.kernels.base import Variant
from rollbus_accel.kernels.group_normalise.reference import EPS

#: Members that a program looks at together.
MOST_MEMBERS = 1024
ELEMENTS = 1024


@triton.jit
def _group_normalise(
    score_ptr,
    valid_ptr,
    result_ptr,
    eps,
    num_groups,
    num_members,
    SCALE: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    groups = (tl.program_id(0) * BLOCK_G + tl.arange(0, BLOCK_G))[:, None]
    local = tl.arange(0, BLOCK_M)[None, :]
    first = groups.to(tl.int64) * num_members
    total = tl.zeros((BLOCK_G,), tl.float32)
    low = tl.full((BLOCK_G,), float("inf"), tl.float32)
    high = tl.full((BLOCK_G,), -float("inf"), tl.float32)
    num = tl.zeros((BLOCK_G,), tl.float32)
    for start in range(0, num_members, BLOCK_M):
        mask = (groups < num_groups) & (start + local < num_members)
        valid = tl.load(valid_ptr + first + start + local, mask=mask, other=0) != 0
        score = tl.load(score_ptr + first + start + local, mask=mask, other=0.0).to(tl.float32)
        total += tl.sum(tl.where(valid, score, 0.0), axis=1)
        low = tl.minimum(low, tl.min(tl.where(valid, score, float("inf")), axis=1))
        high = tl.maximum(high, tl.max(tl.where(valid, score, -float("inf")), axis=1))
        num += tl.sum(valid.to(tl.float32), axis=1)
    mean = (total / tl.maximum(num, 1.0))[:, None]
    square = tl.zeros((BLOCK_G,), tl.float32)
    for start in range(0, num_members, BLOCK_M):
        mask = (groups < num_groups) & (start + local < num_members)
        valid = tl.load(valid_ptr + first + start + local, mask=mask, other=0) != 0
        score = tl.load(score_ptr + first + start + local, mask=mask, other=0.0).to(tl.float32)
        centred = tl.where(valid, score - mean, 0.0)
        square += tl.sum(centred * centred, axis=1)
    std = tl.sqrt(square / tl.maximum(num - 1.0, 1.0))
    largest = tl.maximum(1.0, tl.maximum(tl.abs(low), tl.abs(high)))
    factor = tl.where((high > low) & (std > eps * largest), 1.0, 0.0)
    if SCALE:
        factor = factor / (std + eps)
    for start in range(0, num_members, BLOCK_M):
        mask = (groups < num_groups) & (start + local < num_members)
        valid = tl.load(valid_ptr + first + start + local, mask=mask, other=0) != 0
        score = tl.load(score_ptr + first + start + local, mask=mask, other=0.0).to(tl.float32)
        result = tl.where(valid, (score - mean) * factor[:, None], 0.0)
        tl.store(result_ptr + first + start + local, result, mask=mask)


def group_normalise(score: Tensor, valid: Tensor, scale: bool) -> Tensor:
    """As the public function."""
    result = torch.empty(score.shape, dtype=torch.float32, device=score.device)
    if not result.numel():
        return result
    num_groups, num_members = score.shape
    block_m = launch.block(num_members, most=MOST_MEMBERS)
    block_g = launch.block(num_groups, most=ELEMENTS // block_m)
    warp_size = launch.properties(score.device).warp_size
    _group_normalise[(launch.ceil_div(num_groups, block_g),)](
        score.contiguous(),
        valid.contiguous(),
        result,
        EPS,
        num_groups,
        num_members,
        SCALE=scale,
        BLOCK_G=block_g,
        BLOCK_M=block_m,
        num_warps=launch.num_warps(block_g * block_m, warp_size),
    )
    return result


def _variant(number: str, scale: bool, block_m: int) -> Variant:
    return Variant(
        f"group_normalise-{number}-{block_m}" + ("" if scale else "-unscaled"),
        _group_normalise,
        {
            "score_ptr": f"*{number}",
            "valid_ptr": "*i1",
            "result_ptr": "*fp32",
            "eps": "fp32",
            "num_groups": "i32",
            "num_members": "i32",
        },
        {"SCALE": scale, "BLOCK_G": ELEMENTS // block_m, "BLOCK_M": block_m},
        num_warps=4,
    )


VARIANTS = [_variant("fp32", True, 8), _variant("bf16", True, 1024), _variant("fp32", False, 64)]
SPILLS = {
    "group_normalise-fp32-64-unscaled": "8 bytes on sm_100 with triton 3.9 only; a block of half the size "
    "would take two passes over groups of 1024"
}
