"""Of a decision that holds several actions only those count that were executed.

Symbols: C actions of one decision, k of them to be executed.
"""

from __future__ import annotations

import torch
from torch import Tensor


def executed(per_action: Tensor, num_steps: Tensor | None) -> Tensor:
    """Sum [...] over the actions of ``per_action`` [..., k] that were executed; None: all."""
    if num_steps is not None:
        place = torch.arange(per_action.shape[-1], device=per_action.device)
        per_action = torch.where(place < num_steps.unsqueeze(-1), per_action, torch.zeros_like(per_action))
    return per_action.sum(-1)


def mean_over(per_action: Tensor, valid: Tensor | None) -> Tensor:
    """Mean [...] over the actions of ``per_action`` [..., C] that are ``valid`` bool [..., C]; None: all."""
    if valid is None:
        return per_action.mean(-1)
    kept = torch.where(valid, per_action, torch.zeros_like(per_action))
    return kept.sum(-1) / valid.sum(-1).clamp(min=1)
