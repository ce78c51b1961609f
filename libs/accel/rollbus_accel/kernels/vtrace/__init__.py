"""V-trace: off-policy value targets and advantages."""

from __future__ import annotations

import torch
from torch import Tensor

from rollbus_accel.kernels.base import Op
from rollbus_accel.kernels.checks import floats, masks, same_shape


def _fake(log_ratio: Tensor, *rest: object) -> tuple[Tensor, Tensor]:
    like = torch.empty_like(log_ratio, dtype=torch.float32, memory_format=torch.contiguous_format)
    return like, torch.empty_like(like)


_op = Op(
    "vtrace",
    schema="(Tensor log_ratio, Tensor reward, Tensor discount, Tensor value, Tensor next_value, "
    "Tensor terminated, Tensor done, Tensor valid, float lam, float rho_clip, float c_clip) "
    "-> (Tensor, Tensor)",
    fake=_fake,
)


def vtrace(
    log_ratio: Tensor,
    reward: Tensor,
    discount: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    done: Tensor,
    valid: Tensor,
    lam: float,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """(advantage, target vs), float32 [T, N] (Espeholt et al., 1802.01561). No gradients.

    ``log_ratio`` [T, N] is the learner's minus the behaviour's log-prob; rho is its exponential, at most
    ``rho_clip``, and the trace is ``lam`` times it, at most ``c_clip``. The rest is as in `gae`. The
    advantage bootstraps from vs of the next decision, and from ``next_value`` where there is none.

    ValueError for shapes that differ, numbers that are not floats and masks that are not bool.
    """
    numbers = {
        "log_ratio": log_ratio,
        "reward": reward,
        "discount": discount,
        "value": value,
        "next_value": next_value,
    }
    flags = {"terminated": terminated, "done": done, "valid": valid}
    same_shape("vtrace", {**numbers, **flags}, ndim=2)
    floats("vtrace", numbers)
    masks("vtrace", flags)
    advantage, target = _op(*numbers.values(), *flags.values(), lam, rho_clip, c_clip)
    return advantage, target
