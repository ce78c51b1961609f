"""Steps of a flow in plain torch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rollbus_accel.kernels.philox import normal

HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


def flow_step(
    x: Tensor,
    velocity: Tensor,
    time: Tensor,
    data: Tensor,
    noise: Tensor,
    std: Tensor,
    counts: Tensor,
    seeds: Tensor,
) -> tuple[Tensor, Tensor]:
    """As the public function, with ``std`` [B, 1] or [B, D]."""
    mean = _mean(x, velocity, time, data, noise)
    z = normal(seeds, x.shape[1]).to(mean.dtype)
    wide = std.to(mean.dtype).expand_as(mean)
    log_prob = -0.5 * z**2 - torch.where(wide > 0, wide, 1.0).log() - HALF_LOG_2PI
    return mean + wide * z, torch.where(counts & (wide > 0), log_prob, 0.0).sum(1)


def flow_log_prob(
    x: Tensor,
    following: Tensor,
    velocity: Tensor,
    time: Tensor,
    data: Tensor,
    noise: Tensor,
    std: Tensor,
    counts: Tensor,
) -> Tensor:
    """As the public function, with ``std`` [B, 1] or [B, D]."""
    zero = torch.zeros((), dtype=x.dtype, device=x.device)
    x, following = torch.where(counts, x.detach(), zero), torch.where(counts, following.detach(), zero)
    mean = _mean(x, torch.where(counts, velocity, zero), time, data, noise)
    wide = std.to(mean.dtype).expand_as(mean)
    z = (following.to(mean.dtype) - mean) / wide
    return torch.where(counts, -0.5 * z**2 - wide.log() - HALF_LOG_2PI, 0.0).sum(1)


def _mean(x: Tensor, velocity: Tensor, time: Tensor, data: Tensor, noise: Tensor) -> Tensor:
    kind = torch.promote_types(x.dtype, torch.float32)
    x, velocity = x.to(kind), velocity.to(kind)
    time, data, noise = (column.detach().to(kind)[:, None] for column in (time, data, noise))
    return data * (x - velocity * time) + noise * (x + velocity * (1.0 - time))
