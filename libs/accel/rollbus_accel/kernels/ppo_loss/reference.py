"""The loss in plain torch, differentiated by autograd."""

from __future__ import annotations

import torch
from torch import Tensor

#: exp() of more than this overflows once multiplied; its gradient is useless long before.
MAX_LOG_RATIO = 20.0


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

    log_ratio = (kept(log_prob) - kept(old_log_prob).detach()).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    rho, gain = log_ratio.exp(), kept(advantage).detach()
    policy_loss = torch.maximum(-gain * rho, -gain * rho.clamp(1.0 - clip_low, 1.0 + clip_high))
    if dual_clip:
        policy_loss = torch.where(gain < 0, torch.minimum(policy_loss, -dual_clip * gain), policy_loss)

    v, wanted, old = kept(value), kept(target).detach(), kept(old_value).detach()
    value_loss = _huber(v - wanted, huber_delta)
    if value_clip:
        held = old + (v - old).clamp(-value_clip, value_clip)
        value_loss = torch.maximum(value_loss, _huber(held - wanted, huber_delta))

    outside = (rho < 1.0 - clip_low) | (rho > 1.0 + clip_high)
    kl = rho - log_ratio - 1.0
    spread = kept(entropy)
    losses = (policy_loss.sum(), value_coef * value_loss.sum(), -entropy_coef * spread.sum())
    statistics = (spread.sum(), kept(kl).sum(), kept(outside).sum(), v.sum())
    return torch.stack(losses), torch.stack(statistics).detach(), valid.sum()


def _huber(error: Tensor, delta: float) -> Tensor:
    if not delta:
        return error**2
    size = error.abs()
    return torch.where(size <= delta, error**2, delta * (2.0 * size - delta))
