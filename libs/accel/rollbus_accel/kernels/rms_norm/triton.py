# mypy: allow-untyped-defs
"""Root-mean-square normalisation: a row a program, everything of it in registers, fp32 inside."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rollbus_accel.kernels import launch
from rollbus_accel.kernels.base import Variant

#: Elements of a program at least, where rows are short.
TILE = 1024
#: The longest row that fits the registers of one program.
MAX_SIZE = 65536
#: Programs of the backward pass per multiprocessor: fewer parts to sum than rows.
PROGRAMS_PER_MULTIPROCESSOR = 4


@triton.jit
def forward_kernel(
    x, weight, y, inverse_rms, num_rows, size, stride, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """ROWS rows a program; BLOCK >= size."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    inside = (rows < num_rows)[:, None] & (columns < size)[None, :]
    values = tl.load(x + rows[:, None].to(tl.int64) * stride + columns[None, :], mask=inside, other=0.0)
    values = values.to(tl.float32)
    inverse = 1.0 / tl.sqrt(tl.sum(values * values, 1) / size + eps)
    w = tl.load(weight + columns, mask=columns < size, other=0.0).to(tl.float32)
    result = values * inverse[:, None] * w[None, :]
    place = rows[:, None].to(tl.int64) * size + columns[None, :]
    tl.store(y + place, result.to(y.dtype.element_ty), mask=inside)
    tl.store(inverse_rms + rows, inverse, mask=rows < num_rows)


@triton.jit
def backward_kernel(
    grad_y, x, weight, inverse_rms, grad_x, partial,
    num_rows, size, stride, grad_stride, rows_per_program,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Consecutive rows a program; its part of the weight's gradient goes to ``partial``.

    The parts are summed afterwards in a fixed order: no atomics, equal bits each time.
    """
    program = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < size
    w = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    grad_w = tl.zeros([BLOCK], tl.float32)
    begin = program.to(tl.int64) * rows_per_program
    for step in range(tl.minimum(rows_per_program, num_rows - begin)):
        row = begin + step
        values = tl.load(x + row * stride + columns, mask=inside, other=0.0).to(tl.float32)
        grad = tl.load(grad_y + row * grad_stride + columns, mask=inside, other=0.0).to(tl.float32)
        inverse = tl.load(inverse_rms + row)
        normed = values * inverse
        grad_w += grad * normed
        scaled = grad * w
        mean = tl.sum(scaled * normed, 0) / size
        result = (scaled - normed * mean) * inverse
        tl.store(grad_x + row * size + columns, result.to(grad_x.dtype.element_ty), mask=inside)
    tl.store(partial + program.to(tl.int64) * size + columns, grad_w, mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """As the reference."""
    x = _rows(x)
    num_rows, size = x.shape
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    inverse_rms = torch.empty(num_rows, dtype=torch.float32, device=x.device)
    if y.numel():
        block, rows, num_warps = _tile(size, x.device)
        forward_kernel[(launch.ceil_div(num_rows, rows),)](
            x, weight.contiguous(), y, inverse_rms, num_rows, size, x.stride(0), eps,
            ROWS=rows, BLOCK=block, num_warps=num_warps,
        )  # fmt: skip
    return y, inverse_rms


def rms_norm_backward(
    grad_y: Tensor, x: Tensor, weight: Tensor, inverse_rms: Tensor
) -> tuple[Tensor, Tensor]:
    """As the reference."""
    x, grad_y = _rows(x), _rows(grad_y)
    num_rows, size = x.shape
    grad_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not grad_x.numel():
        return grad_x, torch.zeros_like(weight)
    most = PROGRAMS_PER_MULTIPROCESSOR * launch.properties(x.device).num_multiprocessors
    rows_per_program = launch.ceil_div(num_rows, min(num_rows, most))
    programs = launch.ceil_div(num_rows, rows_per_program)
    partial = torch.empty(programs, size, dtype=torch.float32, device=x.device)
    block, _, num_warps = _tile(size, x.device)
    backward_kernel[(programs,)](
        grad_y, x, weight.contiguous(), inverse_rms, grad_x, partial,
        num_rows, size, x.stride(0), grad_y.stride(0), rows_per_program,
        BLOCK=block, num_warps=num_warps,
    )  # fmt: skip
    return grad_x, partial.sum(0).to(weight.dtype)


def _rows(x: Tensor) -> Tensor:
    """``x`` [N, H] with neighbours in a row next to each other; the rows may lie apart."""
    return x if x.stride(1) == 1 else x.contiguous()


def _tile(size: int, device: torch.device) -> tuple[int, int, int]:
    """(padded row, rows of a program, warps); ValueError for a row that is too long."""
    if size > MAX_SIZE:
        raise ValueError(
            f"rms_norm: rows of {size} are longer than {MAX_SIZE}, which one program holds; "
            "use the reference: ROLLBUS_KERNELS=reference"
        )
    block = launch.block(size, most=MAX_SIZE)
    rows = max(1, TILE // block)
    return block, rows, launch.num_warps(block * rows, launch.properties(device).warp_size, per_thread=16)


def _variants(number: str, size: int) -> list[Variant]:
    block, rows, num_warps = _tile(size, torch.device("cpu"))
    sizes = {"num_rows": "i32", "size": "i32", "stride": "i32"}
    forward = {name: f"*{number}" for name in ("x", "weight", "y")} | {"inverse_rms": "*fp32"}
    backward = {name: f"*{number}" for name in ("grad_y", "x", "weight", "grad_x")}
    backward |= {"inverse_rms": "*fp32", "partial": "*fp32", "grad_stride": "i32", "rows_per_program": "i32"}
    return [
        Variant(
            f"forward-{number}-{size}", forward_kernel, forward | sizes | {"eps": "fp32"},
            {"ROWS": rows, "BLOCK": block}, num_warps,
        ),
        Variant(f"backward-{number}-{size}", backward_kernel, backward | sizes, {"BLOCK": block}, num_warps),
    ]  # fmt: skip


VARIANTS = [v for size in (4096, 64) for number in ("bf16", "fp32") for v in _variants(number, size)]
