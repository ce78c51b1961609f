# mypy: allow-untyped-defs
"""Log-probability and entropy behind a linear layer: logits exist one tile at a time, fp32 inside."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from rollbus_accel.kernels import launch
from rollbus_accel.kernels.base import Variant

#: Bytes of the logits' gradient that backward holds at a time.
PART_BYTES = 128 << 20


@triton.jit
def logits_tile(
    hidden, weight, rows_left, ids_left, size, hidden_stride, weight_stride,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_SIZE: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """fp32 tile [ROWS, BLOCK] of ``hidden @ weight.T`` from the pointers on; 0 beyond what is left."""
    rows, columns, within = tl.arange(0, ROWS), tl.arange(0, BLOCK), tl.arange(0, BLOCK_SIZE)
    left = rows[:, None] * hidden_stride + within[None, :]
    right = columns[None, :] * weight_stride + within[:, None]
    tile = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in range(0, size, BLOCK_SIZE):
        rest = within < size - start
        a = tl.load(hidden + start + left, mask=(rows < rows_left)[:, None] & rest[None, :], other=0.0)
        b = tl.load(weight + start + right, mask=(columns < ids_left)[None, :] & rest[:, None], other=0.0)
        if UPCAST:
            a, b = a.to(tl.float32), b.to(tl.float32)
        tile = tl.dot(a, b, tile, input_precision="ieee")
    return tile


@triton.jit
def forward_kernel(
    hidden, weight, ids, temperature, mask, top_part, total_part, weighted_part, chosen_part,
    num_rows, num_ids, size, hidden_stride, weight_stride, ids_per_part,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_SIZE: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """ROWS rows against one part of the vocabulary a program; the parts are merged afterwards."""
    first_row = tl.program_id(0) * ROWS
    part = tl.program_id(1)
    rows = first_row + tl.arange(0, ROWS)
    valid = tl.load(mask + rows, mask=rows < num_rows, other=0) != 0
    inverse = 1.0 / tl.load(temperature + rows, mask=valid, other=1.0)
    token = tl.load(ids + rows, mask=valid, other=-1).to(tl.int32)
    hidden += first_row.to(tl.int64) * hidden_stride
    # Finite, so that a tile of -inf does not make exp(-inf + inf).
    top = tl.full([ROWS], -1e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    weighted = tl.zeros([ROWS], tl.float32)
    chosen = tl.full([ROWS], float("-inf"), tl.float32)
    first = part * ids_per_part
    last = tl.minimum(first + ids_per_part, num_ids)
    for step in range(tl.cdiv(last - first, BLOCK)):
        start = first + step * BLOCK
        z = logits_tile(
            hidden, weight + start.to(tl.int64) * weight_stride, num_rows - first_row, last - start, size,
            hidden_stride, weight_stride, ROWS, BLOCK, BLOCK_SIZE, UPCAST,
        )  # fmt: skip
        columns = start + tl.arange(0, BLOCK)
        z = tl.where((columns < last)[None, :], z * inverse[:, None], float("-inf"))
        chosen = tl.maximum(chosen, tl.max(tl.where(columns[None, :] == token[:, None], z, float("-inf")), 1))
        new_top = tl.maximum(top, tl.max(z, 1))
        decay = tl.exp(top - new_top)
        z -= new_top[:, None]
        e = tl.exp(z)
        weighted = decay * (weighted + total * (top - new_top))
        weighted += tl.sum(tl.where(e > 0, e * z, 0.0), 1)
        total = total * decay + tl.sum(e, 1)
        top = new_top
    place = part.to(tl.int64) * num_rows + rows
    stored = rows < num_rows
    tl.store(top_part + place, top, mask=stored)
    tl.store(total_part + place, total, mask=stored)
    tl.store(weighted_part + place, weighted, mask=stored)
    tl.store(chosen_part + place, chosen, mask=stored)


@triton.jit
def grad_logits_kernel(
    hidden, weight, ids, temperature, mask, log_sum, entropy, grad_log_prob, grad_entropy, grad_logits,
    num_rows, num_ids, size, hidden_stride, weight_stride, first_id,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_SIZE: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """One tile of the logits' gradient for ``num_ids`` ids from ``first_id`` on; ``weight`` starts there."""
    first_row = tl.program_id(0) * ROWS
    start = tl.program_id(1) * BLOCK
    z = logits_tile(
        hidden + first_row.to(tl.int64) * hidden_stride, weight + start.to(tl.int64) * weight_stride,
        num_rows - first_row, num_ids - start, size, hidden_stride, weight_stride,
        ROWS, BLOCK, BLOCK_SIZE, UPCAST,
    )  # fmt: skip
    rows = first_row + tl.arange(0, ROWS)
    columns = start + tl.arange(0, BLOCK)
    valid = tl.load(mask + rows, mask=rows < num_rows, other=0) != 0
    inverse = 1.0 / tl.load(temperature + rows, mask=valid, other=1.0)
    token = tl.load(ids + rows, mask=valid, other=-1).to(tl.int32) - first_id
    norm = tl.load(log_sum + rows, mask=valid, other=0.0)
    h = tl.load(entropy + rows, mask=valid, other=0.0)
    grad_lp = tl.load(grad_log_prob + rows, mask=valid, other=0.0) * inverse
    grad_h = tl.load(grad_entropy + rows, mask=valid, other=0.0) * inverse
    lp = z * inverse[:, None] - norm[:, None]
    # Factors of masked rows are 0; their logits may be NaN.
    p = tl.where(valid[:, None], tl.exp(lp), 0.0)
    lp = tl.where(valid[:, None], lp + h[:, None], 0.0)
    hit = tl.where(columns[None, :] == token[:, None], grad_lp[:, None], 0.0)
    grad = hit - p * (grad_lp[:, None] + grad_h[:, None] * lp)
    stored = (rows < num_rows)[:, None] & (columns < num_ids)[None, :]
    place = rows[:, None].to(tl.int64) * num_ids + columns[None, :]
    tl.store(grad_logits + place, grad.to(grad_logits.dtype.element_ty), mask=stored)


class Tile(NamedTuple):
    """Block sizes, warps and stages; by the registers and shared memory they take, see docs/kernels.md."""

    rows: int
    block: int
    block_size: int
    num_warps: int
    num_stages: int

    def blocks(self, upcast: bool) -> dict[str, int | bool]:
        """The kernels' constants."""
        return {
            "ROWS": self.rows, "BLOCK": self.block, "BLOCK_SIZE": self.block_size, "UPCAST": upcast
        }  # fmt: skip

    def arguments(self) -> dict[str, int | bool]:
        """Keyword arguments of a launch."""
        stages = {"num_warps": self.num_warps, "num_stages": self.num_stages}
        return self.blocks(launch.upcast_dot()) | stages


def tile(dtype: torch.dtype, num_rows: int, warp_size: int, *, forward: bool) -> Tile:
    """The tile for ``num_rows`` rows; a wide one for 16-bit numbers, which matrix units take.

    Forward keeps a row's sums beside the tile and has registers for half of it. CDNA has 64 KB of shared
    memory: one stage less lets two programs share it.
    """
    if dtype == torch.float32:
        rows = launch.block(num_rows, most=64, least=16)
        return Tile(rows, 64, 16, 8 if rows == 64 else 4, 2)
    rows = launch.block(num_rows, most=128, least=16)
    stages = 3 if warp_size == 32 else 2
    return Tile(rows, 64 if forward else 128, 64, 8 if rows == 128 else 4, stages)


def _tile(hidden: Tensor, forward: bool) -> Tile:
    warp_size = launch.properties(hidden.device).warp_size
    return tile(hidden.dtype, len(hidden), warp_size, forward=forward)


def linear_logprob(
    hidden: Tensor, weight: Tensor, ids: Tensor, temperature: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """As the reference."""
    hidden, weight = _rows(hidden), _rows(weight)
    num_rows, size = hidden.shape
    if not num_rows:
        return tuple(hidden.new_empty(0, dtype=torch.float32) for _ in range(3))  # type: ignore[return-value]
    blocks = _tile(hidden, forward=True)
    num_parts, ids_per_part = _parts(num_rows, len(weight), blocks, hidden.device)
    parts = torch.empty(4, num_parts, num_rows, dtype=torch.float32, device=hidden.device)
    forward_kernel[(launch.ceil_div(num_rows, blocks.rows), num_parts)](
        hidden, weight, *(x.contiguous() for x in (ids, temperature, mask)), *parts,
        num_rows, len(weight), size, hidden.stride(0), weight.stride(0), ids_per_part,
        **blocks.arguments(),
    )  # fmt: skip
    known = (ids >= 0) & (ids < len(weight))
    return _merge(parts, mask, known)


def _merge(parts: Tensor, mask: Tensor, known: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of parts [4, P, N], each with its own maximum, the sums of the whole."""
    tops, totals, weighted, chosen = parts
    top = tops.max(0).values
    moved = tops - top
    decay = moved.exp()
    total = (decay * totals).sum(0)
    spread = total.log()
    entropy = spread - (decay * (weighted + totals * moved)).sum(0) / total
    log_prob = torch.where(known, chosen.max(0).values - top - spread, torch.nan)
    return tuple(torch.where(mask, x, 0.0) for x in (log_prob, entropy, top + spread))  # type: ignore[return-value]


def linear_logprob_backward(
    hidden: Tensor,
    weight: Tensor,
    ids: Tensor,
    temperature: Tensor,
    mask: Tensor,
    log_sum: Tensor,
    entropy: Tensor,
    grad_log_prob: Tensor,
    grad_entropy: Tensor,
    want_hidden: bool,
    want_weight: bool,
) -> tuple[Tensor, Tensor]:
    """As the reference; a part of the vocabulary at a time, its products by the vendor's library."""
    hidden, weight = _rows(hidden), _rows(weight)
    columns = [
        x.contiguous() for x in (ids, temperature, mask, log_sum, entropy, grad_log_prob, grad_entropy)
    ]
    part = _backward_part(len(hidden), len(weight), hidden.element_size())
    grad_hidden = (
        torch.zeros(hidden.shape, dtype=torch.float32, device=hidden.device) if want_hidden else None
    )
    grad_weight = torch.empty(weight.shape, dtype=weight.dtype, device=weight.device) if want_weight else None
    # A masked row of NaN has the factor 0, and 0 * NaN would reach the weight.
    rows = torch.where(mask[:, None], hidden, 0.0) if want_weight else hidden
    for first in range(0, len(weight), part):
        piece = weight[first : first + part]
        grad = _grad_logits(hidden, piece, columns, first)
        if grad_hidden is not None:
            grad_hidden += grad @ piece
        if grad_weight is not None:
            torch.mm(grad.T, rows, out=grad_weight[first : first + part])
    return (
        hidden.new_empty(0) if grad_hidden is None else grad_hidden.to(hidden.dtype),
        weight.new_empty(0) if grad_weight is None else grad_weight,
    )


def _grad_logits(hidden: Tensor, weight: Tensor, columns: list[Tensor], first_id: int) -> Tensor:
    num_rows, num_ids = len(hidden), len(weight)
    grad = torch.empty(num_rows, num_ids, dtype=hidden.dtype, device=hidden.device)
    if grad.numel():
        blocks = _tile(hidden, forward=False)
        grad_logits_kernel[(launch.ceil_div(num_rows, blocks.rows), launch.ceil_div(num_ids, blocks.block))](
            hidden, weight, *columns, grad,
            num_rows, num_ids, hidden.shape[1], hidden.stride(0), weight.stride(0), first_id,
            **blocks.arguments(),
        )  # fmt: skip
    return grad


def _parts(num_rows: int, num_ids: int, blocks: Tile, device: torch.device) -> tuple[int, int]:
    """(parts of the vocabulary, ids of each): enough programs for the device, whole tiles."""
    wanted = launch.ceil_div(
        2 * launch.properties(device).num_multiprocessors, launch.ceil_div(num_rows, blocks.rows)
    )
    tiles = launch.ceil_div(num_ids, blocks.block)
    ids_per_part = launch.ceil_div(tiles, max(1, min(wanted, tiles))) * blocks.block
    return launch.ceil_div(num_ids, ids_per_part), ids_per_part


def _backward_part(num_rows: int, num_ids: int, itemsize: int) -> int:
    """Ids of a part in backward: a multiple of 256 within `PART_BYTES`, at least 1024."""
    fitting = PART_BYTES // max(1, num_rows * itemsize) // 256 * 256
    return max(1024, min(fitting, num_ids))


def _rows(x: Tensor) -> Tensor:
    """``x`` [N, H] with neighbours in a row next to each other; the rows may lie apart."""
    return x if x.stride(1) == 1 else x.contiguous()


def _variants(number: str, dtype: torch.dtype, num_rows: int) -> list[Variant]:
    inputs = {"hidden": f"*{number}", "weight": f"*{number}", "ids": "*i64"}
    inputs |= {"temperature": "*fp32", "mask": "*i1"}
    sizes = {"num_rows": "i32", "num_ids": "i32:16", "size": "i32:16"}
    sizes |= {"hidden_stride": "i32:16", "weight_stride": "i32:16"}
    parts = {f"{name}_part": "*fp32" for name in ("top", "total", "weighted", "chosen")}
    saved = {name: "*fp32" for name in ("log_sum", "entropy", "grad_log_prob", "grad_entropy")}
    forward = inputs | parts | sizes | {"ids_per_part": "i32:16"}
    backward = inputs | saved | {"grad_logits": f"*{number}"} | sizes | {"first_id": "i32:16"}
    found = []
    for kernel, signature in ((forward_kernel, forward), (grad_logits_kernel, backward)):
        blocks = tile(dtype, num_rows, warp_size=32, forward=kernel is forward_kernel)
        name = f"{'forward' if kernel is forward_kernel else 'backward'}-{number}-{blocks.rows}"
        constants = blocks.blocks(upcast=False)
        found.append(Variant(name, kernel, signature, constants, blocks.num_warps, blocks.num_stages))
    return found


VARIANTS = [
    variant
    for num_rows in (4096, 16)
    for number, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32))
    for variant in _variants(number, dtype, num_rows)
]
