# mypy: allow-untyped-defs
"""Gumbel-max sampling on a GPU: one pass over the logits, whatever their number.

Four columns at a distance of a quarter share one call of the random number generator. Largest logit, sum
of exponentials and entropy are kept as in online softmax (Milakov and Gimelshein, 1805.02867).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rollbus_accel.kernels import launch
from rollbus_accel.kernels.base import Variant
from rollbus_accel.kernels.philox import quarter
from rollbus_accel.kernels.random_blocks import uniform

#: Counters that a program looks at together, each four columns; and elements of its tile.
MOST_COUNTERS = 512
ELEMENTS = 512


@triton.jit
def _gumbel(bits):
    return -tl.log(-tl.log(uniform(bits)))


@triton.jit
def _columns(logits, bits, index, mask, largest, total, weighted, best, choice, chosen):
    """The running statistics with the columns ``index`` taken in."""
    top = tl.maximum(largest, tl.max(logits, axis=1))
    safe = tl.where(top == -float("inf"), 0.0, top)
    shrink = tl.exp(largest - safe)
    weight = tl.exp(logits - safe[:, None])
    total = total * shrink + tl.sum(weight, axis=1)
    part = tl.where(weight > 0.0, weight * logits, 0.0)
    weighted = weighted * shrink + tl.sum(part, axis=1)
    score = tl.where(mask, logits + _gumbel(bits), -float("inf"))
    high = tl.max(score, axis=1)
    where = tl.min(tl.where(score == high[:, None], index, 2147483647), axis=1)
    logit = tl.max(tl.where(index == where[:, None], logits, -float("inf")), axis=1)
    better = high > best
    choice, chosen = tl.where(better, where, choice), tl.where(better, logit, chosen)
    return top, total, weighted, tl.maximum(best, high), choice, chosen


@triton.jit
def _sample_categorical(
    logits_ptr,
    seeds_ptr,
    choice_ptr,
    log_prob_ptr,
    entropy_ptr,
    num_rows,
    num_columns,
    num_counters,
    BLOCK_R: tl.constexpr,
    BLOCK_Q: tl.constexpr,
):
    rows = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    inside = rows < num_rows
    seeds = tl.load(seeds_ptr + rows, mask=inside, other=0)
    first = rows.to(tl.int64)[:, None] * num_columns
    largest = tl.full((BLOCK_R,), -float("inf"), tl.float32)
    best = tl.full((BLOCK_R,), -float("inf"), tl.float32)
    chosen = tl.full((BLOCK_R,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_R,), tl.float32)
    weighted = tl.zeros((BLOCK_R,), tl.float32)
    choice = tl.zeros((BLOCK_R,), tl.int32)
    for start in range(0, num_counters, BLOCK_Q):
        counters = start + tl.arange(0, BLOCK_Q)[None, :]
        grid = counters + tl.zeros((BLOCK_R, BLOCK_Q), tl.int32)
        lanes = tl.randint4x(seeds[:, None] + tl.zeros((BLOCK_R, BLOCK_Q), tl.int64), grid)
        for lane in tl.static_range(4):
            index = lane * num_counters + grid
            mask = (counters < num_counters) & (index < num_columns) & inside[:, None]
            logits = tl.load(logits_ptr + first + index, mask=mask, other=-float("inf")).to(tl.float32)
            largest, total, weighted, best, choice, chosen = _columns(
                logits, lanes[lane], index, mask, largest, total, weighted, best, choice, chosen
            )
    normaliser = largest + tl.log(total)
    tl.store(choice_ptr + rows, choice.to(tl.int64), mask=inside)
    tl.store(log_prob_ptr + rows, chosen - normaliser, mask=inside)
    tl.store(entropy_ptr + rows, normaliser - weighted / total, mask=inside)


def sample_categorical(logits: Tensor, seeds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As the public function."""
    num_rows, num_columns = logits.shape
    choice = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    log_prob = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
    entropy = torch.empty_like(log_prob)
    if not num_rows:
        return choice, log_prob, entropy
    num_counters = quarter(num_columns)
    block_q = launch.block(num_counters, most=MOST_COUNTERS)
    block_r = launch.block(num_rows, most=ELEMENTS // block_q)
    warp_size = launch.properties(logits.device).warp_size
    _sample_categorical[(launch.ceil_div(num_rows, block_r),)](
        logits.contiguous(),
        seeds.contiguous(),
        choice,
        log_prob,
        entropy,
        num_rows,
        num_columns,
        num_counters,
        BLOCK_R=block_r,
        BLOCK_Q=block_q,
        num_warps=launch.num_warps(block_r * block_q, warp_size, per_thread=4),
    )
    return choice, log_prob, entropy


def _variant(number: str, block_q: int) -> Variant:
    return Variant(
        f"sample_categorical-{number}-{block_q}",
        _sample_categorical,
        {
            "logits_ptr": f"*{number}",
            "seeds_ptr": "*i64",
            "choice_ptr": "*i64",
            "log_prob_ptr": "*fp32",
            "entropy_ptr": "*fp32",
            "num_rows": "i32",
            "num_columns": "i32",
            "num_counters": "i32",
        },
        {"BLOCK_R": ELEMENTS // block_q, "BLOCK_Q": block_q},
    )


VARIANTS = [_variant("fp32", 4), _variant("bf16", 512), _variant("fp32", 512)]
