# mypy: allow-untyped-defs
"""Steps of a flow on a GPU: several rows per program, four columns per call of the generator."""

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
ELEMENTS = 256


@triton.jit
def _flow(
    x_ptr,
    velocity_ptr,
    time_ptr,
    data_ptr,
    noise_ptr,
    std_ptr,
    counts_ptr,
    seeds_ptr,
    following_ptr,
    log_prob_ptr,
    std_stride,
    num_rows,
    num_columns,
    num_counters,
    SAMPLE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_Q: tl.constexpr,
):
    """Samples ``following`` by ``seeds``, or scores it. ``WIDE``: one deviation per element, else per row."""
    rows = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    inside = rows < num_rows
    first = rows.to(tl.int64)[:, None] * num_columns
    time = tl.load(time_ptr + rows, mask=inside, other=0.0).to(tl.float32)
    data = tl.load(data_ptr + rows, mask=inside, other=0.0).to(tl.float32)
    noise = tl.load(noise_ptr + rows, mask=inside, other=0.0).to(tl.float32)
    of_x, of_velocity = (data + noise)[:, None], (noise * (1.0 - time) - data * time)[:, None]
    log_prob = tl.zeros((BLOCK_R,), tl.float32)
    flat = tl.zeros((BLOCK_R, BLOCK_Q), tl.int32)
    for start in range(0, num_counters, BLOCK_Q):
        counters = start + tl.arange(0, BLOCK_Q)[None, :] + flat
        if SAMPLE:
            seeds = tl.load(seeds_ptr + rows, mask=inside, other=0)[:, None] + flat.to(tl.int64)
            noises = normals(seeds, counters)
        for lane in tl.static_range(4):
            index = lane * num_counters + counters
            mask = (counters < num_counters) & (index < num_columns) & inside[:, None]
            x = tl.load(x_ptr + first + index, mask=mask, other=0.0).to(tl.float32)
            velocity = tl.load(velocity_ptr + first + index, mask=mask, other=0.0).to(tl.float32)
            mean = of_x * x + of_velocity * velocity
            deviation = rows.to(tl.int64)[:, None] * std_stride + (index if WIDE else flat)
            std = tl.load(std_ptr + deviation, mask=mask, other=1.0).to(tl.float32)
            counts = (tl.load(counts_ptr + first + index, mask=mask, other=0) != 0) & mask
            if SAMPLE:
                z = noises[lane]
                tl.store(following_ptr + first + index, mean + std * z, mask=mask)
                counts = counts & (std > 0.0)
                std = tl.where(counts, std, 1.0)
            else:
                z = (tl.load(following_ptr + first + index, mask=mask, other=0.0).to(tl.float32) - mean) / std
            element = -0.5 * z * z - tl.log(std) - 0.9189385332046727
            log_prob += tl.sum(tl.where(counts, element, 0.0), axis=1)
    tl.store(log_prob_ptr + rows, log_prob, mask=inside)


def flow_step(
    x: Tensor,
    velocity: Tensor,
    time: Tensor,
    data: Tensor,
    noise: Tensor,
    std: Tensor,
    counts: Tensor,
    seeds: Tensor,
) -> tuple[Tensor, Tensor]:
    """As the public function, with ``std`` [B, 1] or [B, D]."""
    following = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    return following, _launch((x, velocity, time, data, noise, std, counts), seeds, following, sample=True)


def flow_log_prob(
    x: Tensor,
    following: Tensor,
    velocity: Tensor,
    time: Tensor,
    data: Tensor,
    noise: Tensor,
    std: Tensor,
    counts: Tensor,
) -> Tensor:
    """As the public function, with ``std`` [B, 1] or [B, D]."""
    # A pointer has to be given where seeds would be; it is not read.
    columns = (x, velocity, time, data, noise, std, counts)
    return _launch(columns, time, following.contiguous(), sample=False)


def _launch(columns: tuple[Tensor, ...], seeds: Tensor, following: Tensor, *, sample: bool) -> Tensor:
    x, std = columns[0], columns[5].contiguous()
    num_rows, num_columns = x.shape
    log_prob = torch.empty(num_rows, dtype=torch.float32, device=x.device)
    if not num_rows:
        return log_prob
    num_counters, warp_size = quarter(num_columns), launch.properties(x.device).warp_size
    block_q = launch.block(num_counters, most=MOST_COUNTERS)
    block_r = launch.block(num_rows, most=ELEMENTS // block_q)
    _flow[(launch.ceil_div(num_rows, block_r),)](
        *(column.contiguous() for column in columns),
        seeds.contiguous(),
        following,
        log_prob,
        std.shape[1],
        num_rows,
        num_columns,
        num_counters,
        SAMPLE=sample,
        WIDE=std.shape[1] > 1,
        BLOCK_R=block_r,
        BLOCK_Q=block_q,
        num_warps=launch.num_warps(block_r * block_q, warp_size, per_thread=2),
    )
    return log_prob


def _variant(number: str, sample: bool, wide: bool, block_q: int) -> Variant:
    signature = {f"{name}_ptr": f"*{number}" for name in ("x", "velocity")}
    signature |= {f"{name}_ptr": "*fp32" for name in ("time", "data", "noise", "std")}
    signature |= {"counts_ptr": "*i1", "seeds_ptr": "*i64" if sample else "*fp32"}
    signature |= {"following_ptr": "*fp32", "log_prob_ptr": "*fp32"}
    signature |= {name: "i32" for name in ("std_stride", "num_rows", "num_columns", "num_counters")}
    blocks = {"BLOCK_R": ELEMENTS // block_q, "BLOCK_Q": block_q}
    name = f"flow_{'step' if sample else 'log_prob'}-{number}-{block_q}" + ("-wide" if wide else "")
    return Variant(name, _flow, signature, {"SAMPLE": sample, "WIDE": wide, **blocks})


VARIANTS = [
    _variant("fp32", True, False, 8),
    _variant("bf16", True, True, 64),
    _variant("fp32", False, True, 8),
    _variant("bf16", False, False, 64),
]
