# mypy: allow-untyped-defs
"""The sum on a GPU: columns over programs, time backwards in tiles, as in gae."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rollbus_accel.kernels import launch
from rollbus_accel.kernels.base import Variant


@triton.jit
def _then(decay_later, sum_later, decay, total):
    """Composition of two steps of ``y = total + decay y``."""
    return decay * decay_later, total + decay * sum_later


@triton.jit
def _discounted_return(
    reward_ptr,
    valid_ptr,
    done_ptr,
    total_ptr,
    discount,
    num_steps,
    num_rows,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    local = tl.arange(0, BLOCK_T)
    carry = tl.zeros((BLOCK_N,), tl.float32)
    for start in range((tl.cdiv(num_steps, BLOCK_T) - 1) * BLOCK_T, -1, -BLOCK_T):
        steps = (start + local)[:, None]
        at = steps.to(tl.int64) * num_rows + columns[None, :]
        mask = (steps < num_steps) & (columns < num_rows)[None, :]
        valid = tl.load(valid_ptr + at, mask=mask, other=0) != 0
        done = tl.load(done_ptr + at, mask=mask, other=1) != 0
        reward = tl.load(reward_ptr + at, mask=mask, other=0.0).to(tl.float32)
        decay = tl.where(done, 0.0, discount)
        reach, total = tl.associative_scan((decay, tl.where(valid, reward, 0.0)), 0, _then, reverse=True)
        total = total + reach * carry[None, :]
        tl.store(total_ptr + at, tl.where(valid, total, 0.0), mask=mask)
        carry = tl.sum(tl.where(local[:, None] == 0, total, 0.0), axis=0)


def discounted_return(reward: Tensor, valid: Tensor, done: Tensor, discount: float) -> Tensor:
    """As the public function, of [T, N]."""
    total = torch.empty(reward.shape, dtype=torch.float32, device=reward.device)
    if not total.numel():
        return total
    num_steps, num_rows = reward.shape
    warp_size = launch.properties(reward.device).warp_size
    block_t, block_n = launch.time_tile(num_steps, warp_size)
    _discounted_return[(launch.ceil_div(num_rows, block_n),)](
        reward.contiguous(),
        valid.contiguous(),
        done.contiguous(),
        total,
        discount,
        num_steps,
        num_rows,
        BLOCK_T=block_t,
        BLOCK_N=block_n,
        num_warps=launch.num_warps(block_t * block_n, warp_size, per_thread=4),
    )
    return total


def _variant(number: str, warp_size: int) -> Variant:
    block_t, block_n = launch.time_tile(128, warp_size)
    return Variant(
        f"discounted_return-{number}-{warp_size}",
        _discounted_return,
        {
            "reward_ptr": f"*{number}",
            "valid_ptr": "*i1",
            "done_ptr": "*i1",
            "total_ptr": "*fp32",
            "discount": "fp32",
            "num_steps": "i32",
            "num_rows": "i32",
        },
        {"BLOCK_T": block_t, "BLOCK_N": block_n},
        num_warps=launch.num_warps(block_t * block_n, warp_size, per_thread=4),
    )


VARIANTS = [_variant(number, warp_size) for number in ("fp32", "bf16") for warp_size in (32, 64)]
