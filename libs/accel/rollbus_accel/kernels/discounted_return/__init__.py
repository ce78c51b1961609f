"""Discounted sum of rewards from each step on."""

from __future__ import annotations

import torch
from torch import Tensor

from rollbus_accel.kernels.base import Op
from rollbus_accel.kernels.checks import floats, masks, same_shape


def _fake(reward: Tensor, *rest: object) -> Tensor:
    return torch.empty_like(reward, dtype=torch.float32, memory_format=torch.contiguous_format)


_op = Op(
    "discounted_return",
    schema="(Tensor reward, Tensor valid, Tensor done, float discount) -> Tensor",
    fake=_fake,
)


def discounted_return(reward: Tensor, valid: Tensor, discount: float, done: Tensor | None = None) -> Tensor:
    """``R_t = r_t + discount R_{t+1}``, float32 of the shape of ``reward`` [T, ...]. No gradients.

    A step that is not ``valid`` adds nothing and gets 0; the sum goes on behind it. Nothing comes from
    behind a step that is ``done``.

    ValueError for shapes that differ, rewards that are not floats and masks that are not bool.
    """
    done = torch.zeros_like(valid) if done is None else done
    same_shape("discounted_return", {"reward": reward, "valid": valid, "done": done})
    floats("discounted_return", {"reward": reward})
    masks("discounted_return", {"valid": valid, "done": done})
    if not reward.ndim:
        raise ValueError("discounted_return: reward is a number; give [T, ...]")
    columns = [x.reshape(len(x), -1) if x.numel() else x.reshape(len(x), 0) for x in (reward, valid, done)]
    result: Tensor = _op(*columns, discount)
    return result.view(reward.shape)
