"""Moving averages of weights: slow targets, and averages that actors get in place of the trained weights.

An algorithm that publishes an average has a role made by `average_of`, calls `follow` after its steps with
`averaging_rate`, and returns the role's tensors from `publish`. Checkpoints hold what was published, so
evaluations use the average too. Not for ratios against recorded log-probs: the learner scores with its own
weights.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from rollbus_core.lazy import lazy_import
from rollbus_learner.algorithm import Role

if TYPE_CHECKING:
    import torch
    from torch import nn
else:
    torch = lazy_import("torch")


def average_of(module: nn.Module) -> Role:
    """A role that starts as a copy of ``module``; it is saved and never trained."""
    return Role(copy.deepcopy(module).requires_grad_(False), trainable=False)


def averaging_rate(decay: float, num_steps: int) -> float:
    """How far the average moves after ``num_steps`` steps (from 1 on): first by much, then 1 - ``decay``.

    ``1 - min(decay, (1 + n) / (10 + n))``, so that the initial weights are soon forgotten.
    """
    return 1.0 - min(decay, (1 + num_steps) / (10 + num_steps))


def follow(target: nn.Module, source: nn.Module, tau: float) -> None:
    """Move ``target``'s parameters by ``tau`` towards ``source``'s; buffers are copied."""
    with torch.no_grad():
        torch._foreach_lerp_(list(target.parameters()), list(source.parameters()), tau)
        for to, value in zip(target.buffers(), source.buffers()):
            to.copy_(value)
