# mypy: allow-untyped-defs
"""GAE on a GPU: columns over programs, time backwards in tiles that are loaded and scanned at once.

Within a tile the recursion is an associative scan of (decay, delta) pairs, so its loads do not wait for
each other; the advantage of the tile's first decision is carried to the tile before.
"""

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
def _gae(
    reward_ptr,
    discount_ptr,
    value_ptr,
    next_value_ptr,
    terminated_ptr,
    done_ptr,
    valid_ptr,
    advantage_ptr,
    target_ptr,
    lam,
    num_steps,
    num_rows,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (columns < num_rows)[None, :]
    local = tl.arange(0, BLOCK_T)
    carry = tl.zeros((BLOCK_N,), tl.float32)
    for start in range((tl.cdiv(num_steps, BLOCK_T) - 1) * BLOCK_T, -1, -BLOCK_T):
        steps = (start + local)[:, None]
        at = steps.to(tl.int64) * num_rows + columns[None, :]
        mask = (steps < num_steps) & inside
        later = (steps + 1 < num_steps) & inside
        valid = tl.load(valid_ptr + at, mask=mask, other=0) != 0
        valid_later = tl.load(valid_ptr + at + num_rows, mask=later, other=0) != 0
        done = tl.load(done_ptr + at, mask=mask, other=1) != 0
        terminated = tl.load(terminated_ptr + at, mask=mask, other=1) != 0
        reward = tl.load(reward_ptr + at, mask=mask, other=0.0).to(tl.float32)
        discount = tl.load(discount_ptr + at, mask=mask, other=0.0).to(tl.float32)
        value = tl.load(value_ptr + at, mask=mask, other=0.0).to(tl.float32)
        next_value = tl.load(next_value_ptr + at, mask=mask, other=0.0).to(tl.float32)
        delta = tl.where(valid, reward + discount * tl.where(terminated, 0.0, next_value) - value, 0.0)
        decay = tl.where(valid & valid_later & (done == 0), discount * lam, 0.0)
        reach, total = tl.associative_scan((decay, delta), 0, _then, reverse=True)
        advantage = total + tl.where(reach != 0.0, reach * carry[None, :], 0.0)
        tl.store(advantage_ptr + at, advantage, mask=mask)
        tl.store(target_ptr + at, tl.where(valid, advantage + value, 0.0), mask=mask)
        carry = tl.sum(tl.where(local[:, None] == 0, advantage, 0.0), axis=0)


def gae(
    reward: Tensor,
    discount: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    done: Tensor,
    valid: Tensor,
    lam: float,
) -> tuple[Tensor, Tensor]:
    """As the public function."""
    inputs = [x.contiguous() for x in (reward, discount, value, next_value, terminated, done, valid)]
    advantage = torch.empty(reward.shape, dtype=torch.float32, device=reward.device)
    target = torch.empty_like(advantage)
    if not advantage.numel():
        return advantage, target
    num_steps, num_rows = reward.shape
    warp_size = launch.properties(reward.device).warp_size
    block_t, block_n = launch.time_tile(num_steps, warp_size)
    _gae[(launch.ceil_div(num_rows, block_n),)](
        *inputs,
        advantage,
        target,
        lam,
        num_steps,
        num_rows,
        BLOCK_T=block_t,
        BLOCK_N=block_n,
        num_warps=launch.num_warps(block_t * block_n, warp_size, per_thread=4),
    )
    return advantage, target


def _variant(number: str, warp_size: int) -> Variant:
    numbers = {f"{n}_ptr": f"*{number}" for n in ("reward", "discount", "value", "next_value")}
    flags = {f"{n}_ptr": "*i1" for n in ("terminated", "done", "valid")}
    outputs = {"advantage_ptr": "*fp32", "target_ptr": "*fp32"}
    sizes = {"lam": "fp32", "num_steps": "i32", "num_rows": "i32"}
    block_t, block_n = launch.time_tile(128, warp_size)
    return Variant(
        f"gae-{number}-{warp_size}",
        _gae,
        numbers | flags | outputs | sizes,
        {"BLOCK_T": block_t, "BLOCK_N": block_n},
        num_warps=launch.num_warps(block_t * block_n, warp_size, per_thread=4),
    )


VARIANTS = [_variant(number, warp_size) for number in ("fp32", "bf16") for warp_size in (32, 64)]
