"""V-trace in plain torch: one step of the recursion per decision."""

from __future__ import annotations

import torch
from torch import Tensor

from rollbus_accel.kernels.gae.reference import accumulate, reaches_next

#: Larger ratios are clipped anyway, and would overflow.
MAX_LOG_RATIO = 20.0


def vtrace(
    log_ratio: Tensor,
    reward: Tensor,
    discount: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    done: Tensor,
    valid: Tensor,
    lam: float,
    rho_clip: float,
    c_clip: float,
) -> tuple[Tensor, Tensor]:
    """As the public function."""
    kind = torch.promote_types(reward.dtype, torch.float32)
    reward, discount, value = reward.to(kind), discount.to(kind), value.to(kind)
    zero = torch.zeros((), dtype=kind, device=reward.device)
    following = torch.where(terminated, zero, next_value.to(kind))
    ratio = torch.where(valid, log_ratio.to(kind), zero).clamp(max=MAX_LOG_RATIO).exp()
    rho, trace = ratio.clamp(max=rho_clip), lam * ratio.clamp(max=c_clip)
    delta = torch.where(valid, rho * (reward + discount * following - value), zero)
    keep = reaches_next(done, valid)
    target = torch.where(valid, accumulate(delta, torch.where(keep, discount * trace, zero)) + value, zero)
    after = torch.where(keep, torch.cat([target[1:], target[:1]]), following)
    return torch.where(valid, rho * (reward + discount * after - value), zero), target
