# mypy: allow-untyped-defs
"""The squashed Gaussian on a GPU: several rows per program, four columns per call of the generator."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rollbus_accel.kernels import launch
from rollbus_accel.kernels.base import Variant
from rollbus_accel.kernels.philox import quarter
from rollbus_accel.kernels.random_blocks import normals

MOST_COUNTERS = 64
ELEMENTS = 128


@triton.jit
def _sample_tanh_gaussian(
    mean_ptr,
    log_std_ptr,
    seeds_ptr,
    action_ptr,
    raw_ptr,
    log_prob_ptr,
    num_rows,
    num_columns,
    num_counters,
    BLOCK_R: tl.constexpr,
    BLOCK_Q: tl.constexpr,
):
    rows = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    inside = rows < num_rows
    seeds = tl.load(seeds_ptr + rows, mask=inside, other=0)[:, None]
    first = rows.to(tl.int64)[:, None] * num_columns
    log_prob = tl.zeros((BLOCK_R,), tl.float32)
    for start in range(0, num_counters, BLOCK_Q):
        counters = start + tl.arange(0, BLOCK_Q)[None, :] + tl.zeros((BLOCK_R, BLOCK_Q), tl.int32)
        noises = normals(seeds + tl.zeros((BLOCK_R, BLOCK_Q), tl.int64), counters)
        for lane in tl.static_range(4):
            index = lane * num_counters + counters
            mask = (counters < num_counters) & (index < num_columns) & inside[:, None]
            mean = tl.load(mean_ptr + first + index, mask=mask, other=0.0).to(tl.float32)
            log_std = tl.load(log_std_ptr + first + index, mask=mask, other=0.0).to(tl.float32)
            noise = noises[lane]
            raw = mean + tl.exp(log_std) * noise
            small = tl.exp(-2.0 * tl.abs(raw))
            size = (1.0 - small) / (1.0 + small)
            action = tl.where(raw < 0.0, -size, size)
            softplus = tl.maximum(-2.0 * raw, 0.0) + tl.log(1.0 + small)
            log_slope = 2.0 * (0.6931471805599453 - raw - softplus)
            element = -0.5 * noise * noise - log_std - 0.9189385332046727 - log_slope
            log_prob += tl.sum(tl.where(mask, element, 0.0), axis=1)
            tl.store(action_ptr + first + index, action, mask=mask)
            tl.store(raw_ptr + first + index, raw, mask=mask)
    tl.store(log_prob_ptr + rows, log_prob, mask=inside)


def sample_tanh_gaussian(mean: Tensor, log_std: Tensor, seeds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As the public function."""
    num_rows, num_columns = mean.shape
    action = torch.empty(mean.shape, dtype=torch.float32, device=mean.device)
    raw = torch.empty_like(action)
    log_prob = torch.empty(num_rows, dtype=torch.float32, device=mean.device)
    if not num_rows:
        return action, raw, log_prob
    num_counters = quarter(num_columns)
    block_q = launch.block(num_counters, most=MOST_COUNTERS)
    block_r = launch.block(num_rows, most=ELEMENTS // block_q)
    warp_size = launch.properties(mean.device).warp_size
    _sample_tanh_gaussian[(launch.ceil_div(num_rows, block_r),)](
        mean.contiguous(),
        log_std.contiguous(),
        seeds.contiguous(),
        action,
        raw,
        log_prob,
        num_rows,
        num_columns,
        num_counters,
        BLOCK_R=block_r,
        BLOCK_Q=block_q,
        num_warps=launch.num_warps(block_r * block_q, warp_size, per_thread=2),
    )
    return action, raw, log_prob


def _variant(number: str, block_q: int) -> Variant:
    signature = {f"{name}_ptr": f"*{number}" for name in ("mean", "log_std")}
    signature |= {"seeds_ptr": "*i64"}
    signature |= {f"{name}_ptr": "*fp32" for name in ("action", "raw", "log_prob")}
    signature |= {name: "i32" for name in ("num_rows", "num_columns", "num_counters")}
    return Variant(
        f"sample_tanh_gaussian-{number}-{block_q}",
        _sample_tanh_gaussian,
        signature,
        {"BLOCK_R": ELEMENTS // block_q, "BLOCK_Q": block_q},
    )


VARIANTS = [_variant("fp32", 2), _variant("bf16", 2), _variant("fp32", 64)]
