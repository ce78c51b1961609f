"""The loss in plain torch, differentiated by autograd."""

from __future__ import annotations

import torch
from torch import Tensor

#: exp() of more than this overflows once multiplied; its gradient is useless long before.
MAX_LOG_RATIO = 20.0


def log_ratio(log_prob: Tensor, old_log_prob: Tensor) -> Tensor:
    """Logarithm of the probability ratio of learner and behaviour, [B], within the range of `exp`."""
    return (log_prob - old_log_prob).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def ppo_clip(rho: Tensor, advantage: Tensor, low: float, high: float, dual_clip: float = 0.0) -> Tensor:
    """Clipped surrogate, to be minimised, [B] (Schulman et al., 1707.06347).

    ``rho`` is clipped to [1 - low, 1 + high]. ``dual_clip`` c > 1 bounds the loss of A < 0 by -c A
    (Ye et al., 1912.09729); 0: off.
    """
    cost = -advantage
    loss = torch.maximum(cost * rho, cost * rho.clamp(1.0 - low, 1.0 + high))
    if dual_clip:
        loss = torch.where(advantage < 0, torch.minimum(loss, -dual_clip * advantage), loss)
    return loss


def outside_clip(rho: Tensor, low: float, high: float) -> Tensor:
    """1 where the unclamped ratio is outside [1 - low, 1 + high], else 0, [B]."""
    rho = rho.detach()
    return ((rho < 1.0 - low) | (rho > 1.0 + high)).to(rho.dtype)


def value_loss(
    value: Tensor, target: Tensor, old_value: Tensor, clip: float = 0.0, huber_delta: float = 0.0
) -> Tensor:
    """Squared error of ``value``, [B]; linear beyond ``huber_delta`` (0: never).

    ``clip`` > 0: the larger of the losses of ``value`` and of ``value`` held within ``clip`` of
    ``old_value``.
    """
    loss = _huber(value - target, huber_delta)
    if clip:
        held = old_value + (value - old_value).clamp(-clip, clip)
        loss = torch.maximum(loss, _huber(held - target, huber_delta))
    return loss


def ppo_loss(
    log_prob: Tensor,
    value: Tensor,
    entropy: Tensor,
    old_log_prob: Tensor,
    advantage: Tensor,
    target: Tensor,
    old_value: Tensor,
    valid: Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float,
    value_clip: float,
    huber_delta: float,
    value_coef: float,
    entropy_coef: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """(losses [3], statistics [4], count); see `PpoLoss`."""
    kind = torch.promote_types(log_prob.dtype, torch.float32)
    zero = torch.zeros((), dtype=kind, device=log_prob.device)

    def kept(x: Tensor) -> Tensor:
        return torch.where(valid, x.to(kind), zero)

    change = log_ratio(kept(log_prob), kept(old_log_prob).detach())
    rho = change.exp()
    policy = ppo_clip(rho, kept(advantage).detach(), clip_low, clip_high, dual_clip)
    v = kept(value)
    errors = value_loss(v, kept(target).detach(), kept(old_value).detach(), value_clip, huber_delta)
    kl, outside = rho - change - 1.0, outside_clip(rho, clip_low, clip_high)
    spread = kept(entropy)
    losses = (policy.sum(), value_coef * errors.sum(), -entropy_coef * spread.sum())
    statistics = (spread.sum(), kept(kl).sum(), kept(outside).sum(), v.sum())
    return torch.stack(losses), torch.stack(statistics).detach(), valid.sum()


def _huber(error: Tensor, delta: float) -> Tensor:
    if not delta:
        return error * error
    size = error.abs()
    return torch.where(size <= delta, error * error, delta * (2.0 * size - delta))
