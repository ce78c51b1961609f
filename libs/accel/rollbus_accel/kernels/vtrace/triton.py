# mypy: allow-untyped-defs
"""V-trace on a GPU: columns over programs, time backwards in tiles, as in gae.

The advantage needs vs of the decision that follows, so the scan carries two maps of what lies behind the
tile: to this decision's excess vs - V, and to the excess of the one that follows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rollbus_accel.kernels import launch
from rollbus_accel.kernels.base import Variant
from rollbus_accel.kernels.vtrace.reference import MAX_LOG_RATIO


@triton.jit
def _then(
    slope_later, total_later, slope_behind_later, total_behind_later, slope, total, slope_behind, total_behind
):
    """Maps of a stretch of decisions followed by another: of its first excess, and of its second."""
    return (
        slope * slope_later,
        total + slope * total_later,
        slope_behind * slope_later,
        total_behind + slope_behind * total_later,
    )


@triton.jit
def _vtrace(
    log_ratio_ptr,
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
    rho_clip,
    c_clip,
    max_log_ratio,
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
        keep = (tl.load(valid_ptr + at + num_rows, mask=later, other=0) != 0) & valid
        keep = keep & (tl.load(done_ptr + at, mask=mask, other=1) == 0)
        terminated = tl.load(terminated_ptr + at, mask=mask, other=1) != 0
        log_ratio = tl.load(log_ratio_ptr + at, mask=mask, other=0.0).to(tl.float32)
        reward = tl.load(reward_ptr + at, mask=mask, other=0.0).to(tl.float32)
        discount = tl.load(discount_ptr + at, mask=mask, other=0.0).to(tl.float32)
        value = tl.load(value_ptr + at, mask=mask, other=0.0).to(tl.float32)
        value_later = tl.load(value_ptr + at + num_rows, mask=later, other=0.0).to(tl.float32)
        next_value = tl.load(next_value_ptr + at, mask=mask, other=0.0).to(tl.float32)

        follow = tl.where(terminated, 0.0, next_value)
        ratio = tl.exp(tl.minimum(tl.where(valid, log_ratio, 0.0), max_log_ratio))
        rho = tl.minimum(ratio, rho_clip)
        delta = tl.where(valid, rho * (reward + discount * follow - value), 0.0)
        decay = tl.where(keep, discount * lam * tl.minimum(ratio, c_clip), 0.0)
        slope, total, slope_behind, total_behind = tl.associative_scan(
            (decay, delta, tl.full(delta.shape, 1.0, tl.float32), tl.zeros(delta.shape, tl.float32)),
            0,
            _then,
            reverse=True,
        )
        excess = total + slope * carry[None, :]
        excess_later = total_behind + slope_behind * carry[None, :]
        after = tl.where(keep, value_later + excess_later, follow)
        advantage = tl.where(valid, rho * (reward + discount * after - value), 0.0)
        tl.store(advantage_ptr + at, advantage, mask=mask)
        tl.store(target_ptr + at, tl.where(valid, excess + value, 0.0), mask=mask)
        carry = tl.sum(tl.where(local[:, None] == 0, excess, 0.0), axis=0)


def vtrace(
    log_ratio: Tensor,
    reward: Tensor,
    discount: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    done: Tensor,
    valid: Tensor,
    lam: float,
    rho_clip: float,
    c_clip: float,
) -> tuple[Tensor, Tensor]:
    """As the public function."""
    columns = (log_ratio, reward, discount, value, next_value, terminated, done, valid)
    advantage = torch.empty(reward.shape, dtype=torch.float32, device=reward.device)
    target = torch.empty_like(advantage)
    if not advantage.numel():
        return advantage, target
    num_steps, num_rows = reward.shape
    warp_size = launch.properties(reward.device).warp_size
    block_t, block_n = launch.time_tile(num_steps, warp_size)
    _vtrace[(launch.ceil_div(num_rows, block_n),)](
        *(x.contiguous() for x in columns),
        advantage,
        target,
        lam,
        rho_clip,
        c_clip,
        MAX_LOG_RATIO,
        num_steps,
        num_rows,
        BLOCK_T=block_t,
        BLOCK_N=block_n,
        num_warps=launch.num_warps(block_t * block_n, warp_size, per_thread=4),
    )
    return advantage, target


def _variant(number: str, warp_size: int) -> Variant:
    floats = ("log_ratio", "reward", "discount", "value", "next_value")
    signature = {f"{name}_ptr": f"*{number}" for name in floats}
    signature |= {f"{name}_ptr": "*i1" for name in ("terminated", "done", "valid")}
    signature |= {"advantage_ptr": "*fp32", "target_ptr": "*fp32"}
    signature |= {name: "fp32" for name in ("lam", "rho_clip", "c_clip", "max_log_ratio")}
    signature |= {"num_steps": "i32", "num_rows": "i32"}
    block_t, block_n = launch.time_tile(128, warp_size)
    return Variant(
        f"vtrace-{number}-{warp_size}",
        _vtrace,
        signature,
        {"BLOCK_T": block_t, "BLOCK_N": block_n},
        num_warps=launch.num_warps(block_t * block_n, warp_size, per_thread=4),
    )


VARIANTS = [_variant(number, warp_size) for number in ("fp32", "bf16") for warp_size in (32, 64)]
