"""The loss of proximal policy optimisation with its statistics, in one pass."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from rollbus_accel.kernels.base import Op
from rollbus_accel.kernels.checks import floats, masks, same_shape


class PpoLoss(NamedTuple):
    """Scalars, each a sum over what is valid, float32; only the losses carry gradients.

    Sums come with their number, so that a mean over micro-batches and ranks is a sum over a sum.
    """

    policy_loss: Tensor
    #: Times ``value_coef``.
    value_loss: Tensor
    #: Minus the entropy, times ``entropy_coef``.
    entropy_loss: Tensor
    entropy: Tensor
    #: Estimator k3 of the KL divergence (Schulman, "Approximating KL").
    approx_kl: Tensor
    #: How many unclamped ratios are outside the clip.
    clip_fraction: Tensor
    value: Tensor
    #: int64.
    num_valid: Tensor

    def mean(self) -> Tensor:
        """The loss of this batch alone."""
        return (self.policy_loss + self.value_loss + self.entropy_loss) / self.num_valid.clamp(min=1)


def _fake(log_prob: Tensor, value: Tensor, *rest: object) -> tuple[Tensor, ...]:
    def row(num: int) -> Tensor:
        return log_prob.new_empty(num, dtype=torch.float32)

    count = log_prob.new_empty((), dtype=torch.int64)
    slopes = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (log_prob, value))
    return row(3), row(4), count, *slopes


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, _, entropy, _, _, _, _, valid, *_, entropy_coef = inputs
    ctx.save_for_backward(output[3], output[4], valid)
    ctx.mark_non_differentiable(*output[1:])
    ctx.entropy_coef, ctx.entropy_dtype = entropy_coef, entropy.dtype


def _backward(ctx: Any, to_losses: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    log_prob_slope, value_slope, valid = ctx.saved_tensors
    policy, value, entropy = to_losses.unbind()
    to_entropy = None
    if ctx.needs_input_grad[2]:
        to_entropy = torch.where(valid, -ctx.entropy_coef * entropy, 0.0).to(ctx.entropy_dtype)
    rest = (None,) * (len(ctx.needs_input_grad) - 3)
    to_log_prob = (log_prob_slope * policy).to(log_prob_slope.dtype)
    return to_log_prob, (value_slope * value).to(value_slope.dtype), to_entropy, *rest


_op = Op(
    "ppo_loss",
    schema="(Tensor log_prob, Tensor value, Tensor entropy, Tensor old_log_prob, Tensor advantage, "
    "Tensor target, Tensor old_value, Tensor valid, float clip_low, float clip_high, float dual_clip, "
    "float value_clip, float huber_delta, float value_coef, float entropy_coef) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    fake=_fake,
    setup_context=_setup,
    backward=_backward,
)


def ppo_loss(
    log_prob: Tensor,
    value: Tensor,
    entropy: Tensor,
    old_log_prob: Tensor,
    advantage: Tensor,
    target: Tensor,
    old_value: Tensor,
    valid: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float = 0.0,
    value_clip: float = 0.0,
    huber_delta: float = 0.0,
    value_coef: float = 0.5,
    entropy_coef: float = 0.0,
) -> PpoLoss:
    """Clipped surrogate, value loss and entropy bonus (Schulman et al., 1707.06347), summed over ``valid``.

    All tensors have one shape. Gradients go to ``log_prob``, ``value`` and ``entropy``, the learner's;
    ``old_log_prob`` and ``old_value`` are of the version that acted and of the start of the update.
    The ratio is clipped to [1 - clip_low, 1 + clip_high]. ``dual_clip`` c > 1 bounds the loss of negative
    advantages by -c A (Ye et al., 1912.09729). ``value_clip``: the larger of the losses of the value and of
    the value held so close to the old one. ``huber_delta``: value errors beyond it count linearly. 0: off.

    ValueError for shapes that differ, numbers that are not floats and a mask that is not bool.
    """
    numbers = {
        "log_prob": log_prob,
        "value": value,
        "entropy": entropy,
        "old_log_prob": old_log_prob,
        "advantage": advantage,
        "target": target,
        "old_value": old_value,
    }
    same_shape("ppo_loss", {**numbers, "valid": valid})
    floats("ppo_loss", numbers)
    masks("ppo_loss", {"valid": valid})
    settings = (clip_low, clip_high, dual_clip, value_clip, huber_delta, value_coef, entropy_coef)
    losses, statistics, count, *_ = _op(*numbers.values(), valid, *settings)
    return PpoLoss._make((*losses.unbind(), *statistics.unbind(), count))
