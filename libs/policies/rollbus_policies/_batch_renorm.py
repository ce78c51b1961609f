"""Batch renormalisation (Ioffe, 1702.03275) of several networks at once.

Symbols: M networks, L samples, F features.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

EPS = 1e-3


class BatchRenorm(nn.Module):
    """[M, L, F] -> [M, L, F], each feature of each network by statistics of its own.

    With ``running`` the moving averages normalise. Else those of the batch do, corrected towards the moving
    averages by r in [1/max_r, max_r] and d in [-max_d, max_d], through which no gradient goes. In the first
    ``warm_up`` such calls r = 1 and d = 0: plain batch normalisation.
    """

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(
        self, num: int, size: int, *, warm_up: int, momentum: float = 0.01, max_r: float = 3.0,
        max_d: float = 5.0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.warm_up, self.momentum, self.max_r, self.max_d = warm_up, momentum, max_r, max_d
        self.scale = nn.Parameter(torch.ones(num, 1, size))
        self.shift = nn.Parameter(torch.zeros(num, 1, size))
        self.register_buffer("mean", torch.zeros(num, 1, size))
        self.register_buffer("var", torch.ones(num, 1, size))
        #: Batches that the averages are made of.
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor, running: bool) -> Tensor:
        if running:
            return torch.addcmul(self.shift, (x - self.mean) * (self.var + EPS).rsqrt(), self.scale)
        mean, var = x.mean(1, keepdim=True), x.var(1, unbiased=False, keepdim=True)
        std = (var + EPS).sqrt()
        unit = (x - mean) / std
        with torch.no_grad():
            if self.count >= self.warm_up:
                known = (self.var + EPS).sqrt()
                r = (std / known).clamp(1.0 / self.max_r, self.max_r)
                d = ((mean - self.mean) / known).clamp(-self.max_d, self.max_d)
            else:
                r, d = torch.ones_like(std), torch.zeros_like(std)
            self.mean.lerp_(mean, self.momentum)
            self.var.lerp_(var, self.momentum)
            self.count += 1
        return torch.addcmul(self.shift, unit * r + d, self.scale)
