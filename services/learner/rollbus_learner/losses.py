"""Loss and metric formulas, one value per sample; `masked` reduces them.

``log_prob`` is the learner's (with gradient), ``old_log_prob`` that of the version that acted.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rollbus_learner import masked

#: exp() of more than this overflows once multiplied; its gradient is useless long before.
_MAX_LOG_RATIO = 20.0


def ratio(log_prob: Tensor, old_log_prob: Tensor) -> Tensor:
    """Probability ratio of learner and behaviour, [B]."""
    return (log_prob - old_log_prob).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()


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


def _huber(error: Tensor, delta: float) -> Tensor:
    if not delta:
        return error * error
    size = error.abs()
    return torch.where(size <= delta, error * error, delta * (2.0 * size - delta))


def kl_k1(log_prob: Tensor, reference: Tensor) -> Tensor:
    """``lp - lr``, [B]: unbiased, high variance, for samples of the policy (Schulman, "Approximating KL")."""
    return log_prob - reference


def kl_k2(log_prob: Tensor, reference: Tensor) -> Tensor:
    """``0.5 (lp - lr)^2``, [B]: biased, its gradient on on-policy samples is that of the KL."""
    return 0.5 * (log_prob - reference) ** 2


def kl_k3(log_prob: Tensor, reference: Tensor) -> Tensor:
    """``exp(lr - lp) - (lr - lp) - 1``, [B]: unbiased and never negative."""
    difference = (reference - log_prob).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    return difference.exp() - difference - 1.0


def explained_variance(value: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """``1 - var(target - value) / var(target)`` over ``mask``, scalar; 0 if the target is constant."""
    spread = masked.variance(target, mask)
    left = masked.variance(masked.select(target, mask) - masked.select(value, mask), mask)
    return torch.where(spread > 0, 1.0 - left / spread.clamp(min=1e-30), torch.zeros_like(spread))
