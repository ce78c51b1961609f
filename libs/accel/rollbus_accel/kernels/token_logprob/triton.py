# mypy: allow-untyped-defs
"""Log-probability and entropy of one token per row: one pass over the logits, fp32 inside."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rollbus_accel.kernels import launch
from rollbus_accel.kernels.base import Variant

#: Logits of one step at most; a row of more takes several.
BLOCK = 4096
#: Elements of a tile at least, where rows are short.
TILE = 1024


@triton.jit
def forward_kernel(
    logits, ids, temperature, mask, log_prob, entropy, log_sum,
    num_rows, num_ids, stride,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """ROWS rows a program, BLOCK logits at a time."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    valid = tl.load(mask + rows, mask=rows < num_rows, other=0) != 0
    inverse = 1.0 / tl.load(temperature + rows, mask=valid, other=1.0)
    first = logits + rows[:, None].to(tl.int64) * stride
    # Finite, so that a block of -inf does not make exp(-inf + inf).
    top = tl.full([ROWS], -1e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    weighted = tl.zeros([ROWS], tl.float32)
    for start in range(0, num_ids, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        inside = valid[:, None] & (columns < num_ids)[None, :]
        z = tl.load(first + columns[None, :], mask=inside, other=float("-inf")).to(tl.float32)
        z = z * inverse[:, None]
        new_top = tl.maximum(top, tl.max(z, 1))
        decay = tl.exp(top - new_top)
        shifted = z - new_top[:, None]
        e = tl.exp(shifted)
        # weighted = sum of e * (z - top); moving top moves every term of it.
        weighted = decay * (weighted + total * (top - new_top))
        weighted += tl.sum(tl.where(e > 0, e * shifted, 0.0), 1)
        total = total * decay + tl.sum(e, 1)
        top = new_top
    spread = tl.log(total)
    token = tl.load(ids + rows, mask=valid, other=0)
    known = valid & (token >= 0) & (token < num_ids)
    z = tl.load(logits + rows.to(tl.int64) * stride + token, mask=known, other=float("nan")).to(tl.float32)
    stored = rows < num_rows
    tl.store(log_prob + rows, tl.where(valid, z * inverse - top - spread, 0.0), mask=stored)
    tl.store(entropy + rows, tl.where(valid, spread - weighted / total, 0.0), mask=stored)
    tl.store(log_sum + rows, tl.where(valid, top + spread, 0.0), mask=stored)


@triton.jit
def backward_kernel(
    logits, ids, temperature, mask, log_sum, entropy, grad_log_prob, grad_entropy, grad_logits,
    num_rows, num_ids, stride,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One tile [ROWS, BLOCK] of the gradient a program."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    valid = tl.load(mask + rows, mask=rows < num_rows, other=0) != 0
    inverse = 1.0 / tl.load(temperature + rows, mask=valid, other=1.0)
    token = tl.load(ids + rows, mask=valid, other=0)
    norm = tl.load(log_sum + rows, mask=valid, other=0.0)
    h = tl.load(entropy + rows, mask=valid, other=0.0)
    grad_lp = tl.load(grad_log_prob + rows, mask=valid, other=0.0)
    grad_h = tl.load(grad_entropy + rows, mask=valid, other=0.0)
    inside = valid[:, None] & (columns < num_ids)[None, :]
    place = rows[:, None].to(tl.int64) * stride + columns[None, :]
    z = tl.load(logits + place, mask=inside, other=float("-inf")).to(tl.float32) * inverse[:, None]
    lp = z - norm[:, None]
    p = tl.exp(lp)
    hit = tl.where(columns[None, :] == token[:, None], 1.0, 0.0)
    grad = grad_lp[:, None] * (hit - p) - grad_h[:, None] * tl.where(p > 0, p * (lp + h[:, None]), 0.0)
    grad = tl.where(valid[:, None], grad * inverse[:, None], 0.0)
    stored = (rows < num_rows)[:, None] & (columns < num_ids)[None, :]
    place = rows[:, None].to(tl.int64) * num_ids + columns[None, :]
    tl.store(grad_logits + place, grad.to(grad_logits.dtype.element_ty), mask=stored)


def token_logprob(
    logits: Tensor, ids: Tensor, temperature: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """As the reference."""
    logits = _rows(logits)
    num_rows, num_ids = logits.shape
    log_prob = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
    entropy, log_sum = torch.empty_like(log_prob), torch.empty_like(log_prob)
    if num_rows:
        block, rows, num_warps = _tile(num_ids, logits.device)
        forward_kernel[(launch.ceil_div(num_rows, rows),)](
            logits, ids.contiguous(), temperature.contiguous(), mask.contiguous(),
            log_prob, entropy, log_sum, num_rows, num_ids, logits.stride(0),
            ROWS=rows, BLOCK=block, num_warps=num_warps,
        )  # fmt: skip
    return log_prob, entropy, log_sum


def token_logprob_backward(
    logits: Tensor,
    ids: Tensor,
    temperature: Tensor,
    mask: Tensor,
    log_sum: Tensor,
    entropy: Tensor,
    grad_log_prob: Tensor,
    grad_entropy: Tensor,
) -> Tensor:
    """As the reference."""
    logits = _rows(logits)
    num_rows, num_ids = logits.shape
    grad_logits = torch.empty(num_rows, num_ids, dtype=logits.dtype, device=logits.device)
    if grad_logits.numel():
        block, rows, num_warps = _tile(num_ids, logits.device)
        columns = (ids, temperature, mask, log_sum, entropy, grad_log_prob, grad_entropy)
        backward_kernel[(launch.ceil_div(num_rows, rows), launch.ceil_div(num_ids, block))](
            logits, *(x.contiguous() for x in columns), grad_logits, num_rows, num_ids, logits.stride(0),
            ROWS=rows, BLOCK=block, num_warps=num_warps,
        )  # fmt: skip
    return grad_logits


def _rows(x: Tensor) -> Tensor:
    """``x`` [N, V] with neighbours in a row next to each other; the rows may lie apart."""
    return x if x.stride(1) == 1 else x.contiguous()


def _tile(num_ids: int, device: torch.device) -> tuple[int, int, int]:
    """(logits of a step, rows of a program, warps)."""
    block = launch.block(num_ids, most=BLOCK)
    rows = max(1, TILE // block)
    # Rows and columns of a tile are both held once per thread: less of it each, or registers spill.
    per_thread = 8 if rows == 1 else 4
    warp_size = launch.properties(device).warp_size
    return block, rows, launch.num_warps(block * rows, warp_size, per_thread)


def _variants(number: str, num_ids: int) -> list[Variant]:
    inputs = {"logits": f"*{number}", "ids": "*i64", "temperature": "*fp32", "mask": "*i1"}
    sizes = {"num_rows": "i32", "num_ids": "i32", "stride": "i32"}
    block, rows, num_warps = _tile(num_ids, torch.device("cpu"))
    shape = {"ROWS": rows, "BLOCK": block}
    forward = inputs | {name: "*fp32" for name in ("log_prob", "entropy", "log_sum")} | sizes
    saved = ("log_sum", "entropy", "grad_log_prob", "grad_entropy")
    backward = inputs | {name: "*fp32" for name in saved} | {"grad_logits": f"*{number}"} | sizes
    return [
        Variant(f"forward-{number}-{num_ids}", forward_kernel, forward, shape, num_warps),
        Variant(f"backward-{number}-{num_ids}", backward_kernel, backward, shape, num_warps),
    ]


VARIANTS = [v for size in (32768, 6) for number in ("bf16", "fp32") for v in _variants(number, size)]
