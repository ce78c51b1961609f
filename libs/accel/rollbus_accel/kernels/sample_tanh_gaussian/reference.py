"""The squashed Gaussian in plain torch."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

from rollbus_accel.kernels.philox import normal

HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
LOG_2 = math.log(2.0)


def sample_tanh_gaussian(mean: Tensor, log_std: Tensor, seeds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As the public function."""
    kind = torch.promote_types(mean.dtype, torch.float32)
    noise = normal(seeds, mean.shape[1]).to(kind)
    log_std = log_std.to(kind)
    raw = mean.to(kind) + log_std.exp() * noise
    log_slope = 2.0 * (LOG_2 - raw - softplus(-2.0 * raw))
    elements = -0.5 * noise**2 - log_std - HALF_LOG_2PI - log_slope
    return raw.tanh(), raw, elements.sum(1)
