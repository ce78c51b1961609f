"""The sum in plain torch: one step of the recursion per step of time."""

from __future__ import annotations

import torch
from torch import Tensor

from rollbus_accel.kernels.gae.reference import accumulate


def discounted_return(reward: Tensor, valid: Tensor, done: Tensor, discount: float) -> Tensor:
    """As the public function, of [T, N]."""
    kind = torch.promote_types(reward.dtype, torch.float32)
    zero = torch.zeros((), dtype=kind, device=reward.device)
    decay = torch.where(done, zero, torch.full_like(zero, discount))
    return torch.where(valid, accumulate(torch.where(valid, reward.to(kind), zero), decay), zero)
