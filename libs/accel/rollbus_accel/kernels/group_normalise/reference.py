"""Group statistics in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

#: Added to the deviation; and the deviation, relative to the largest score, that counts as none.
EPS = 1e-6


def group_normalise(score: Tensor, valid: Tensor, scale: bool) -> Tensor:
    """As the public function."""
    kind = torch.promote_types(score.dtype, torch.float32)
    zero = torch.zeros((), dtype=kind, device=score.device)
    kept = torch.where(valid, score.to(kind), zero)
    count = valid.sum(1, keepdim=True)
    mean = kept.sum(1, keepdim=True) / count.clamp(min=1)
    centred = torch.where(valid, kept - mean, zero)
    std = ((centred**2).sum(1, keepdim=True) / (count - 1).clamp(min=1)).sqrt()
    if not score.shape[1]:
        return centred
    high = torch.where(valid, kept, -torch.inf).amax(1, keepdim=True)
    low = torch.where(valid, kept, torch.inf).amin(1, keepdim=True)
    # The mean of equal scores may be rounded, so that they have a deviation.
    differ = (high > low) & (std > EPS * kept.abs().amax(1, keepdim=True).clamp(min=1.0))
    factor = torch.where(differ, 1.0 / (std + EPS) if scale else torch.ones_like(std), zero)
    return centred * factor
