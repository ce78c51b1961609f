"""Of a decision that holds several actions only those count that were executed.

Symbols: C actions of one decision, k of them to be executed.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from rollbus_policies._bounds import Bounds


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


def demonstrated(
    batch: Mapping[str, Tensor], bounds: Bounds, chunk: int, size: int
) -> tuple[Tensor, Tensor | None]:
    """Demonstrated actions in [-1, 1] units, [L, C, A], and which of them are no padding, bool [L, C].

    ``bounds`` are those of all C actions, ``size`` is A.
    """
    action = batch["action"].detach()
    shown = bounds.shaped(action.reshape(-1, chunk * size).cpu().numpy())
    unit = torch.from_numpy(bounds.unscale(shown)).to(action.device).view(-1, chunk, size)
    return unit, batch["action_valid"].reshape(-1, chunk) if "action_valid" in batch else None
