"""Sum, spread and count of what is not masked, in one pass."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from rollbus_accel.kernels.base import Op
from rollbus_accel.kernels.checks import floats, masks, same_shape


class Reduced(NamedTuple):
    """Scalars. The mean is total / num_valid, the variance deviation / num_valid."""

    total: Tensor
    #: Sum of squared differences from the mean.
    deviation: Tensor
    #: int64.
    num_valid: Tensor


def _fake(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    total = x.new_empty((), dtype=torch.float32)
    return total, torch.empty_like(total), x.new_empty((), dtype=torch.int64)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs, output[0], output[2])


def _backward(ctx: Any, to_total: Tensor, to_deviation: Tensor, _: Tensor) -> tuple[Tensor, None]:
    x, mask, total, count = ctx.saved_tensors
    mean = total / count.clamp(min=1)
    gradient = to_total + 2.0 * to_deviation * (x.float() - mean)
    return torch.where(mask, gradient, 0.0).to(x.dtype), None


_op = Op(
    "masked_reduce",
    schema="(Tensor x, Tensor mask) -> (Tensor, Tensor, Tensor)",
    fake=_fake,
    setup_context=_setup,
    backward=_backward,
)


def masked_reduce(x: Tensor, mask: Tensor) -> Reduced:
    """(total, deviation, num_valid) of ``x`` where ``mask``; zeros if nothing is. Gradients to ``x``.

    ``x`` and the bool ``mask`` have one shape, any. Sums are float32, of blocks in an order that depends on
    the size alone, and deviations of blocks are joined as in Chan, Golub, LeVeque (1983).

    ValueError for shapes that differ, an ``x`` that is not floats and a ``mask`` that is not bool.
    """
    same_shape("masked_reduce", {"x": x, "mask": mask})
    floats("masked_reduce", {"x": x})
    masks("masked_reduce", {"mask": mask})
    return Reduced(*_op(x, mask))
