# mypy: allow-untyped-defs
"""A whole small policy in one launch: hidden values never leave the program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from rollbus_accel.kernels import launch
from rollbus_accel.kernels.base import Variant


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):
    """Each maps 0 to 0, so padded columns stay 0. Of exp and erf alone: libdevice is one vendor's."""
    if ACTIVATION == "tanh":
        return 2.0 * tl.sigmoid(2.0 * x) - 1.0
    if ACTIVATION == "elu":
        return tl.where(x > 0, x, tl.exp(tl.minimum(x, 0.0)) - 1.0)
    if ACTIVATION == "silu":
        return x * tl.sigmoid(x)
    if ACTIVATION == "gelu":
        return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    return tl.maximum(x, 0.0)


@triton.jit
def product(a, b, total, UPCAST: tl.constexpr):
    """``total + a @ b`` with a in b's dtype."""
    a = a.to(b.dtype)
    if UPCAST:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, total, input_precision="ieee")


@triton.jit
def layer_tile(weight, inputs, outputs, size_in, size_out):
    """Tile [inputs, outputs] of a layer's weight [size_out, size_in]; 0 outside."""
    inside = (inputs < size_in)[:, None] & (outputs < size_out)[None, :]
    return tl.load(weight + outputs[None, :] * size_in + inputs[:, None], mask=inside, other=0.0)


@triton.jit
def mlp_kernel(
    obs, shift, scale, weight_1, bias_1, weight_2, bias_2, weight_3, bias_3, out,
    num_rows, size_in, width_1, width_2, size_out, stride, clip,
    ACTIVATION: tl.constexpr, DEEP: tl.constexpr, ROWS: tl.constexpr, BLOCK_IN: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr, OUT: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """ROWS rows a program. The first hidden layer is held whole, the second one tile at a time.

    Without DEEP there is one hidden layer and ``weight_3`` follows it.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    units = tl.arange(0, WIDTH)
    actions = tl.arange(0, OUT)
    hidden = tl.zeros([ROWS, WIDTH], tl.float32)
    for start in range(0, size_in, BLOCK_IN):
        inputs = start + tl.arange(0, BLOCK_IN)
        inside = (rows < num_rows)[:, None] & (inputs < size_in)[None, :]
        x = tl.load(obs + rows[:, None].to(tl.int64) * stride + inputs[None, :], mask=inside, other=0.0)
        centre = tl.load(shift + inputs, mask=inputs < size_in, other=0.0)
        factor = tl.load(scale + inputs, mask=inputs < size_in, other=0.0)
        x = (x.to(tl.float32) - centre[None, :]) * factor[None, :]
        x = tl.minimum(tl.maximum(x, -clip), clip)
        hidden = product(x, layer_tile(weight_1, inputs, units, size_in, width_1), hidden, UPCAST)
    bias = tl.load(bias_1 + units, mask=units < width_1, other=0.0).to(tl.float32)
    hidden = activate(hidden + bias[None, :], ACTIVATION)
    result = tl.zeros([ROWS, OUT], tl.float32)
    if DEEP:
        for start in range(0, width_2, BLOCK_WIDTH):
            tile = start + tl.arange(0, BLOCK_WIDTH)
            second = tl.zeros([ROWS, BLOCK_WIDTH], tl.float32)
            second = product(hidden, layer_tile(weight_2, units, tile, width_1, width_2), second, UPCAST)
            offset = tl.load(bias_2 + tile, mask=tile < width_2, other=0.0).to(tl.float32)
            second = activate(second + offset[None, :], ACTIVATION)
            result = product(second, layer_tile(weight_3, tile, actions, width_2, size_out), result, UPCAST)
    else:
        result = product(hidden, layer_tile(weight_3, units, actions, width_1, size_out), result, UPCAST)
    result += tl.load(bias_3 + actions, mask=actions < size_out, other=0.0).to(tl.float32)[None, :]
    place = rows[:, None].to(tl.int64) * size_out + actions[None, :]
    tl.store(out + place, result, mask=(rows < num_rows)[:, None] & (actions < size_out)[None, :])


class Shape(NamedTuple):
    """Padded sizes of a network; by the registers and shared memory they take, see docs/kernels.md."""

    rows: int
    block_in: int
    width: int
    block_width: int
    out: int
    num_warps: int

    def blocks(self, activation: str, deep: bool, upcast: bool) -> dict[str, int | bool | str]:
        """The kernel's constants."""
        return {
            "ACTIVATION": activation, "DEEP": deep, "UPCAST": upcast, "ROWS": self.rows, "OUT": self.out,
            "BLOCK_IN": self.block_in, "WIDTH": self.width, "BLOCK_WIDTH": self.block_width,
        }  # fmt: skip


def padded(num_rows: int, size_in: int, width: int, size_out: int, itemsize: int) -> Shape:
    """Padded sizes for weights of ``itemsize`` bytes; 16 is the least a matrix unit takes."""
    wide = launch.block(width, most=256, least=16)
    rows = 32 if num_rows > 4096 and itemsize == 2 else 16
    return Shape(
        rows,
        launch.block(size_in, most=32 if wide <= 128 else 16, least=16),
        wide,
        32 if wide <= 128 else 16,
        launch.block(size_out, most=256, least=16),
        num_warps=4,
    )


def mlp_act(
    obs: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    shift: Tensor,
    scale: Tensor,
    clip: float,
    activation: str,
) -> Tensor:
    """As the reference."""
    obs = obs if obs.stride(1) == 1 else obs.contiguous()
    num_rows, size_in = obs.shape
    deep, size_out = len(weights) == 3, len(weights[-1])
    out = torch.empty(num_rows, size_out, dtype=torch.float32, device=obs.device)
    if not out.numel():
        return out
    # Without a second hidden layer the first stands in; the kernel does not read it.
    layers = [0, 1, 2] if deep else [0, 0, 1]
    parameters = [x.contiguous() for i in layers for x in (weights[i], biases[i])]
    widths = [len(weights[i]) for i in layers[:2]]
    shape = padded(num_rows, size_in, widths[0], size_out, weights[0].element_size())
    mlp_kernel[(launch.ceil_div(num_rows, shape.rows),)](
        obs, shift.float().contiguous(), scale.float().contiguous(), *parameters, out,
        num_rows, size_in, *widths, size_out, obs.stride(0), clip,
        **shape.blocks(activation, deep, launch.upcast_dot()), num_warps=shape.num_warps, num_stages=1,
    )  # fmt: skip
    return out


def _variant(number: str, num_rows: int, width: int, deep: bool, activation: str = "tanh") -> Variant:
    shape = padded(num_rows, 64, width, 16, 2 if number == "bf16" else 4)
    layers = {f"{kind}_{i}": f"*{number}" for i in (1, 2, 3) for kind in ("weight", "bias")}
    signature = {name: "*fp32" for name in ("obs", "shift", "scale", "out")} | layers
    signature |= {name: "i32" for name in ("num_rows", "size_in", "width_1", "width_2", "size_out", "stride")}
    return Variant(
        f"{number}-{shape.rows}x{width}-{'3' if deep else '2'}-{activation}", mlp_kernel,
        signature | {"clip": "fp32"}, shape.blocks(activation, deep, upcast=False), shape.num_warps, 1,
    )  # fmt: skip


VARIANTS = [
    *(_variant(number, 64, 64, True) for number in ("bf16", "fp32")),
    *(_variant(number, 64, 256, True) for number in ("bf16", "fp32")),
    _variant("bf16", 16384, 256, True),
    _variant("fp32", 64, 64, False),
    *(_variant("bf16", 64, 128, True, name) for name in ("relu", "elu", "silu", "gelu")),
]
