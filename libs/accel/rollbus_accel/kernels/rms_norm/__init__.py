"""Root-mean-square normalisation with a weight per feature."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rollbus_accel.kernels.base import Op
from rollbus_accel.kernels.checks import floats, same_device, shape

_OP = "rms_norm"


def _fake(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    return y, x.new_empty(x.shape[:1], dtype=torch.float32)


def _backward_fake(grad_y: Tensor, x: Tensor, weight: Tensor, inverse_rms: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x, memory_format=torch.contiguous_format), torch.empty_like(weight)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, _ = inputs
    ctx.save_for_backward(x, weight, output[1])


def _backward(ctx: Any, grad_y: Tensor, _: Tensor) -> tuple[Any, ...]:
    return *_backward_op(grad_y, *ctx.saved_tensors), None


_backward_op = Op(
    "rms_norm_backward",
    folder=_OP,
    schema="(Tensor grad_y, Tensor x, Tensor weight, Tensor inverse_rms) -> (Tensor, Tensor)",
    fake=_backward_fake,
)
_op = Op(
    _OP,
    schema="(Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)",
    fake=_fake,
    backward=_backward,
    setup_context=_setup_context,
)


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension (Zhang, Sennrich, 1910.07467).

    ``x`` [..., H] and ``weight`` [H] of floating point; the result has x's shape and dtype and is computed in
    float32, cast once. Gradients reach both; the weight's is summed in a fixed order.

    ValueError for wrong shapes and dtypes.
    """
    floats(_OP, {"x": x, "weight": weight})
    if not x.ndim:
        raise ValueError(f"{_OP}: x has no dimension; give [..., H]")
    shape(_OP, "weight", weight, (x.shape[-1],))
    same_device(_OP, {"x": x, "weight": weight})
    y, _ = _op(x.reshape(-1, x.shape[-1]), weight, eps)
    result: Tensor = y.view(x.shape)
    return result
