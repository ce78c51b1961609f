"""GAE in plain torch: one step of the recursion per decision."""

from __future__ import annotations

import torch
from torch import Tensor


def gae(
    reward: Tensor,
    discount: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    done: Tensor,
    valid: Tensor,
    lam: float,
) -> tuple[Tensor, Tensor]:
    """As the public function."""
    kind = torch.promote_types(reward.dtype, torch.float32)
    reward, discount, value = reward.to(kind), discount.to(kind), value.to(kind)
    zero = torch.zeros((), dtype=kind, device=reward.device)
    following = torch.where(terminated, zero, next_value.to(kind))
    delta = torch.where(valid, reward + discount * following - value, zero)
    decay = torch.where(reaches_next(done, valid), discount * lam, zero)
    advantage = accumulate(delta, decay)
    return advantage, torch.where(valid, advantage + value, zero)


def reaches_next(done: Tensor, valid: Tensor) -> Tensor:
    """bool [T, N]: the next decision is in the same episode, in this batch, and counts."""
    keep = torch.zeros_like(valid)
    keep[:-1] = valid[:-1] & valid[1:] & ~done[:-1]
    return keep


def accumulate(delta: Tensor, decay: Tensor) -> Tensor:
    """``y_t = delta_t + decay_t y_{t+1}``, backwards over axis 0."""
    result = delta.clone()
    for step in range(len(delta) - 2, -1, -1):
        result[step] += decay[step] * result[step + 1]
    return result
