"""Generalised advantage estimation."""

from __future__ import annotations

import torch
from torch import Tensor

from rollbus_accel.kernels.base import Op
from rollbus_accel.kernels.checks import floats, masks, same_shape


def _fake(reward: Tensor, *rest: object) -> tuple[Tensor, Tensor]:
    like = torch.empty_like(reward, dtype=torch.float32, memory_format=torch.contiguous_format)
    return like, torch.empty_like(like)


_op = Op(
    "gae",
    schema="(Tensor reward, Tensor discount, Tensor value, Tensor next_value, Tensor terminated, "
    "Tensor done, Tensor valid, float lam) -> (Tensor, Tensor)",
    fake=_fake,
)


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
    """(advantage, target), float32 [T, N] (Schulman et al., 1506.02438). No gradients.

    All arguments are [T, N]: T decisions of N rows. ``reward`` and ``discount`` are sums and powers over a
    decision's environment steps, ``next_value`` is the value of the observation that follows, the final
    one where an episode ended; it is not read where ``terminated``. ``done`` is terminated or truncated.
    Nothing crosses a decision that is not ``valid``, and its numbers, NaN included, reach no other.
    ``lam`` counts once per decision. ``target`` is advantage + value; both are 0 where not ``valid``.

    ValueError for shapes that differ, numbers that are not floats and masks that are not bool.
    """
    numbers = {"reward": reward, "discount": discount, "value": value, "next_value": next_value}
    flags = {"terminated": terminated, "done": done, "valid": valid}
    same_shape("gae", {**numbers, **flags}, ndim=2)
    floats("gae", numbers)
    masks("gae", flags)
    advantage, target = _op(reward, discount, value, next_value, terminated, done, valid, lam)
    return advantage, target
