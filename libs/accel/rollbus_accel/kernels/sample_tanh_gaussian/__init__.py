"""Sample a Gaussian squashed by tanh, with its log-probability, in one pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rollbus_accel.kernels.base import Op
from rollbus_accel.kernels.checks import floats, same_device, same_shape
from rollbus_accel.kernels.checks import seeds as check_seeds


def _fake(mean: Tensor, log_std: Tensor, seeds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    action = torch.empty_like(mean, dtype=torch.float32, memory_format=torch.contiguous_format)
    return action, torch.empty_like(action), action.new_empty(len(action))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(inputs[0], inputs[1], output[0], output[1])


def _backward(ctx: Any, to_action: Tensor, to_raw: Tensor, to_log_prob: Tensor) -> tuple[Tensor | None, ...]:
    mean, log_std, action, raw = ctx.saved_tensors
    # log(1 - tanh(u)^2) has the slope -2 tanh(u); the Gaussian's own density moves with log_std alone.
    to_u = to_raw + to_action * (1.0 - action**2) + 2.0 * action * to_log_prob[:, None]
    to_log_std = to_u * (raw - mean.float()) - to_log_prob[:, None]
    return to_u.to(mean.dtype), to_log_std.to(log_std.dtype), None


_op = Op(
    "sample_tanh_gaussian",
    schema="(Tensor mean, Tensor log_std, Tensor seeds) -> (Tensor, Tensor, Tensor)",
    fake=_fake,
    setup_context=_setup,
    backward=_backward,
)


def sample_tanh_gaussian(mean: Tensor, log_std: Tensor, seeds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(action [B, A] in (-1, 1), the u [B, A] it is the tanh of, log-prob of the action [B]), float32.

    ``u = mean + exp(log_std) noise`` (Haarnoja et al., 1801.01290, appendix C), with gradients to ``mean``
    and ``log_std`` [B, A] through the sample. Row i's noise is a function of ``seeds[i]`` (int64 or uint64)
    alone; see `philox`. ``log(1 - tanh(u)^2)`` is ``2 (log 2 - u - softplus(-2u))``: tanh is never inverted.

    ValueError for shapes that do not fit, numbers that are not floats and seeds of another dtype.
    """
    numbers = {"mean": mean, "log_std": log_std}
    same_shape("sample_tanh_gaussian", numbers, ndim=2)
    floats("sample_tanh_gaussian", numbers)
    check_seeds("sample_tanh_gaussian", seeds, len(mean))
    same_device("sample_tanh_gaussian", {"mean": mean, "seeds": seeds})
    action, raw, log_prob = _op(mean, log_std, seeds.view(torch.int64))
    return action, raw, log_prob
