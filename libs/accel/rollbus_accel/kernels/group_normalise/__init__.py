"""Advantages relative to a group of episodes with one start."""

from __future__ import annotations

import torch
from torch import Tensor

from rollbus_accel.kernels.base import Op
from rollbus_accel.kernels.checks import floats, masks, same_shape


def _fake(score: Tensor, *rest: object) -> Tensor:
    return torch.empty_like(score, dtype=torch.float32, memory_format=torch.contiguous_format)


_op = Op(
    "group_normalise",
    schema="(Tensor score, Tensor valid, bool scale) -> Tensor",
    fake=_fake,
)


def group_normalise(score: Tensor, valid: Tensor, scale: bool = True) -> Tensor:
    """``(S - mean) / (std + 1e-6)``, float32 [G, M]: G groups of M episodes. No gradients.

    GRPO (Shao et al., 2402.03300); without ``scale``, ``S - mean`` (Dr. GRPO, 2503.20783). The divisor of
    the variance is n - 1. 0 where not ``valid``, and for groups of which fewer than two count or all are
    equal: ``std <= 1e-6 max(1, max |S|)``.

    ValueError for shapes that differ, scores that are not floats and masks that are not bool.
    """
    same_shape("group_normalise", {"score": score, "valid": valid}, ndim=2)
    floats("group_normalise", {"score": score})
    masks("group_normalise", {"valid": valid})
    result: Tensor = _op(score, valid, scale)
    return result
