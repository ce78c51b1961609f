# mypy: allow-untyped-defs
"""The loss on a GPU: a pass writes slopes and the sums of each block, another adds up the blocks in order."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rollbus_accel.kernels import launch
from rollbus_accel.kernels.base import Variant
from rollbus_accel.kernels.ppo_loss.reference import MAX_LOG_RATIO

BLOCK = 1024
#: Programs at most, each of which goes over several blocks.
MOST_PROGRAMS = 1024
#: policy, value, entropy, KL, outside, raw value, count
NUM_SUMS = tl.constexpr(7)


@triton.jit
def _load(ptr, at, mask):
    return tl.load(ptr + at, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _huber(error, delta):
    """(loss, slope); ``delta`` is infinite where errors are squared."""
    size = tl.abs(error)
    near = tl.minimum(size, delta)
    return near * (2.0 * size - near), 2.0 * tl.where(error > 0.0, near, -near)


@triton.jit
def _policy(change, gain, low, high, dual, max_log_ratio):
    """(loss, its slope in the log-prob, ratio, log-ratio)."""
    log_ratio = tl.minimum(tl.maximum(change, -max_log_ratio), max_log_ratio)
    rho = tl.exp(log_ratio)
    held = tl.minimum(tl.maximum(rho, low), high)
    free, clipped = -gain * rho, -gain * held
    bound = tl.where(gain < 0.0, -dual * gain, float("inf"))
    loss = tl.maximum(free, clipped)
    moves = ((free > clipped) | (rho == held)) & (loss <= bound) & (change == log_ratio)
    return tl.minimum(loss, bound), tl.where(moves, free, 0.0), rho, log_ratio


@triton.jit
def _value(value, target, old_value, clip, delta):
    """(loss, its slope in the value); ``clip`` is infinite where the value is free."""
    loss, slope = _huber(value - target, delta)
    step = value - old_value
    near = tl.minimum(tl.maximum(step, -clip), clip)
    held_loss, held_slope = _huber(old_value + near - target, delta)
    farther = (held_loss > loss) & (near != step)
    return tl.where(farther, held_loss, loss), tl.where(farther, 0.0, slope)


@triton.jit
def _samples(
    log_prob_ptr,
    value_ptr,
    entropy_ptr,
    old_log_prob_ptr,
    advantage_ptr,
    target_ptr,
    old_value_ptr,
    valid_ptr,
    partial_ptr,
    log_prob_slope_ptr,
    value_slope_ptr,
    low,
    high,
    dual,
    value_clip,
    delta,
    value_coef,
    max_log_ratio,
    num,
    num_programs,
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0)
    policy_sum = tl.zeros((BLOCK,), tl.float32)
    value_sum = tl.zeros((BLOCK,), tl.float32)
    entropy_sum = tl.zeros((BLOCK,), tl.float32)
    kl_sum = tl.zeros((BLOCK,), tl.float32)
    outside_sum = tl.zeros((BLOCK,), tl.float32)
    raw_sum = tl.zeros((BLOCK,), tl.float32)
    count = tl.zeros((BLOCK,), tl.float32)
    for start in range(program * BLOCK, num, num_programs * BLOCK):
        at = start + tl.arange(0, BLOCK).to(tl.int64)
        inside = at < num
        mask = tl.load(valid_ptr + at, mask=inside, other=0) != 0
        count += mask.to(tl.float32)

        change = _load(log_prob_ptr, at, mask) - _load(old_log_prob_ptr, at, mask)
        gain = _load(advantage_ptr, at, mask)
        loss, slope, rho, log_ratio = _policy(change, gain, low, high, dual, max_log_ratio)
        tl.store(log_prob_slope_ptr + at, slope.to(log_prob_slope_ptr.dtype.element_ty), mask=inside)
        policy_sum += loss
        kl_sum += rho - log_ratio - 1.0
        outside_sum += ((rho < low) | (rho > high)).to(tl.float32)
        value, target = _load(value_ptr, at, mask), _load(target_ptr, at, mask)
        loss, slope = _value(value, target, _load(old_value_ptr, at, mask), value_clip, delta)
        slope = value_coef * slope
        tl.store(value_slope_ptr + at, slope.to(value_slope_ptr.dtype.element_ty), mask=inside)
        value_sum += loss
        raw_sum += value
        entropy_sum += _load(entropy_ptr, at, mask)
    tl.store(partial_ptr + program, tl.sum(policy_sum))
    tl.store(partial_ptr + num_programs + program, tl.sum(value_sum))
    tl.store(partial_ptr + 2 * num_programs + program, tl.sum(entropy_sum))
    tl.store(partial_ptr + 3 * num_programs + program, tl.sum(kl_sum))
    tl.store(partial_ptr + 4 * num_programs + program, tl.sum(outside_sum))
    tl.store(partial_ptr + 5 * num_programs + program, tl.sum(raw_sum))
    tl.store(partial_ptr + 6 * num_programs + program, tl.sum(count))


@triton.jit
def _sums(
    partial_ptr,
    losses_ptr,
    statistics_ptr,
    count_ptr,
    value_coef,
    entropy_coef,
    num_programs,
    BLOCK: tl.constexpr,
):
    at = tl.arange(0, BLOCK)
    mask = at < num_programs
    entropy = tl.sum(_load(partial_ptr + 2 * num_programs, at, mask))
    tl.store(losses_ptr, tl.sum(_load(partial_ptr, at, mask)))
    tl.store(losses_ptr + 1, value_coef * tl.sum(_load(partial_ptr + num_programs, at, mask)))
    tl.store(losses_ptr + 2, -entropy_coef * entropy)
    tl.store(statistics_ptr, entropy)
    for row in tl.static_range(3, 6):
        tl.store(statistics_ptr + row - 2, tl.sum(_load(partial_ptr + row * num_programs, at, mask)))
    tl.store(count_ptr, tl.sum(_load(partial_ptr + 6 * num_programs, at, mask).to(tl.int64)))


def ppo_loss(
    log_prob: Tensor,
    value: Tensor,
    entropy: Tensor,
    old_log_prob: Tensor,
    advantage: Tensor,
    target: Tensor,
    old_value: Tensor,
    valid: Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float,
    value_clip: float,
    huber_delta: float,
    value_coef: float,
    entropy_coef: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(losses, statistics, count, slope of each log-prob, slope of each value)."""
    columns = (log_prob, value, entropy, old_log_prob, advantage, target, old_value, valid)
    device, num, infinite = log_prob.device, log_prob.numel(), float("inf")
    losses, statistics = (torch.empty(n, dtype=torch.float32, device=device) for n in (3, 4))
    count = torch.empty((), dtype=torch.int64, device=device)
    to_log_prob = torch.empty(log_prob.shape, dtype=log_prob.dtype, device=device)
    to_value = torch.empty(value.shape, dtype=value.dtype, device=device)
    programs = max(1, min(MOST_PROGRAMS, launch.ceil_div(num, BLOCK)))
    partial = torch.empty((NUM_SUMS.value, programs), dtype=torch.float32, device=device)
    warp_size, block = launch.properties(device).warp_size, launch.power_of_two(programs)
    _samples[(programs,)](
        *(x.contiguous() for x in columns),
        partial,
        to_log_prob,
        to_value,
        1.0 - clip_low,
        1.0 + clip_high,
        dual_clip or infinite,
        value_clip or infinite,
        huber_delta or infinite,
        value_coef,
        MAX_LOG_RATIO,
        num,
        programs,
        BLOCK=BLOCK,
        num_warps=launch.num_warps(BLOCK, warp_size, per_thread=4),
    )
    _sums[(1,)](
        partial, losses, statistics, count, value_coef, entropy_coef, programs,
        BLOCK=block, num_warps=launch.num_warps(block, warp_size),
    )  # fmt: skip
    return losses, statistics, count, to_log_prob, to_value


def _variant(number: str) -> Variant:
    names = _samples.arg_names
    pointers = [name for name in names if name.endswith("_ptr")]
    signature = {name: f"*{number}" for name in pointers}
    signature |= {"valid_ptr": "*i1", "partial_ptr": "*fp32", "num": "i32", "num_programs": "i32"}
    signature |= {name: "fp32" for name in names if name not in signature and name != "BLOCK"}
    return Variant(f"ppo_loss-{number}", _samples, signature, {"BLOCK": BLOCK}, num_warps=8)


_SUMMED = Variant(
    "ppo_loss-sums",
    _sums,
    {
        "partial_ptr": "*fp32",
        "losses_ptr": "*fp32",
        "statistics_ptr": "*fp32",
        "count_ptr": "*i64",
        "value_coef": "fp32",
        "entropy_coef": "fp32",
        "num_programs": "i32",
    },
    {"BLOCK": MOST_PROGRAMS},
)

VARIANTS = [_variant("fp32"), _variant("bf16"), _SUMMED]
