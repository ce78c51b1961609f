"""The one place where tensors are reduced under a mask.

Every function takes ``x`` and a bool ``mask`` of exactly its shape: no broadcasting, because [B] against
[B, 1] silently makes [B, B]. What is masked is replaced before any arithmetic, because 0 * NaN is NaN.
Minibatches of nothing but valid samples have no mask: None stands for it.
Sums come with their counts, so that a mean over micro-batches or ranks is a sum over a sum.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from rollbus_learner.algorithm import Term


def select(x: Tensor, mask: Tensor) -> Tensor:
    """``x`` where ``mask``, else 0. ValueError unless the shapes are equal and ``mask`` is bool."""
    if x.shape != mask.shape:
        raise ValueError(
            f"values {list(x.shape)} and mask {list(mask.shape)} differ in shape; "
            "give one mask entry per value"
        )
    if mask.dtype != torch.bool:
        raise ValueError(f"a mask is bool, not {mask.dtype}")
    return torch.where(mask, x, torch.zeros((), dtype=x.dtype, device=x.device))


def total(x: Tensor, mask: Tensor | None) -> Term:
    """Sum of ``x`` where ``mask`` and the number of entries it is over."""
    if mask is None:
        return x.sum(), x.numel()
    return select(x, mask).sum(), mask.sum()


def mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean of ``x`` where ``mask``; 0 if nothing is."""
    return select(x, mask).sum() / mask.sum().clamp(min=1)


def variance(x: Tensor, mask: Tensor) -> Tensor:
    """Variance of ``x`` where ``mask``, divisor n; 0 for fewer than two entries."""
    return mean((select(x, mask) - mean(x, mask)) ** 2, mask)


def normalise(x: Tensor, mask: Tensor, eps: float = 1e-8) -> Tensor:
    """``(x - mean) / (std + eps)`` with the statistics of the masked part; 0 outside the mask.

    The divisor of the variance is n - 1; one entry or equal entries give zeros.
    """
    num = mask.sum()
    std = (variance(x, mask) * num / (num - 1).clamp(min=1)).sqrt()
    return select((select(x, mask) - mean(x, mask)) / (std + eps), mask)


def reward_to_go(reward: Tensor, mask: Tensor, discount: float = 1.0) -> Tensor:
    """Discounted sum of ``reward`` [T, ...] from each step on; masked steps add nothing and get 0."""
    reward = select(reward, mask)
    running = torch.zeros_like(reward[0])
    sums = []
    for step in reversed(range(len(reward))):
        running = reward[step] + discount * running
        sums.append(running)
    return select(torch.stack(sums[::-1]), mask)


def valid_mask(batch: Mapping[str, Tensor]) -> Tensor | None:
    """The batch's ``valid`` column; None: every sample counts."""
    return batch.get("valid")
