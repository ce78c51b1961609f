"""Loss and metric formulas, one value per sample; `masked` reduces them.

``log_prob`` is the learner's (with gradient), ``old_log_prob`` that of the version that acted.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rollbus_accel.kernels.ppo_loss.reference import (
    MAX_LOG_RATIO,
    log_ratio,
    outside_clip,
    ppo_clip,
    value_loss,
)
from rollbus_learner import masked

__all__ = [
    "explained_variance", "kl_k1", "kl_k2", "kl_k3", "outside_clip", "ppo_clip", "ratio", "value_loss",
]  # fmt: skip


def ratio(log_prob: Tensor, old_log_prob: Tensor) -> Tensor:
    """Probability ratio of learner and behaviour, [B]."""
    return log_ratio(log_prob, old_log_prob).exp()


def kl_k1(log_prob: Tensor, reference: Tensor) -> Tensor:
    """``lp - lr``, [B]: unbiased, high variance, for samples of the policy (Schulman, "Approximating KL")."""
    return log_prob - reference


def kl_k2(log_prob: Tensor, reference: Tensor) -> Tensor:
    """``0.5 (lp - lr)^2``, [B]: biased, its gradient on on-policy samples is that of the KL."""
    return 0.5 * (log_prob - reference) ** 2


def kl_k3(log_prob: Tensor, reference: Tensor) -> Tensor:
    """``exp(lr - lp) - (lr - lp) - 1``, [B]: unbiased and never negative."""
    difference = (reference - log_prob).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return difference.exp() - difference - 1.0


def explained_variance(value: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """``1 - var(target - value) / var(target)`` over ``mask``, scalar; 0 if the target is constant."""
    spread = masked.variance(target, mask)
    left = masked.variance(masked.select(target, mask) - masked.select(value, mask), mask)
    return torch.where(spread > 0, 1.0 - left / spread.clamp(min=1e-30), torch.zeros_like(spread))
