"""Masked sums in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


def masked_reduce(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As the public function."""
    kind = torch.promote_types(x.dtype, torch.float32)
    zero = torch.zeros((), dtype=kind, device=x.device)
    kept = torch.where(mask, x.to(kind), zero)
    total, count = kept.sum(), mask.sum()
    centred = torch.where(mask, kept - total / count.clamp(min=1), zero)
    return total, (centred**2).sum(), count
