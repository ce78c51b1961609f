"""Running mean and variance of observations, part of the policy and of its versions.

Frozen while acting and learning: only `merge` changes them. Statistics are float64 buffers, what
`forward` applies are float32 buffers made from them, so a state_dict carries both.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

from rollbus_policies.trunk import Trunk

#: Normalised values are cut at this many standard deviations.
CLIP = 10.0
#: A standard deviation below this (relative to the mean) counts as zero and divides by 1.
SMALLEST_STD = 1e-6


class Normaliser(nn.Module):
    """Statistics of one observation key with elements ``shape``."""

    mean: Tensor
    var: Tensor
    count: Tensor
    rejected: Tensor
    shift: Tensor
    scale: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("var", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        #: Rows refused because a value was not finite.
        self.register_buffer("rejected", torch.zeros((), dtype=torch.int64))
        self.register_buffer("shift", torch.zeros(shape))
        self.register_buffer("scale", torch.ones(shape))

    def forward(self, x: Tensor) -> Tensor:
        """float32 [..., *shape], normalised and cut at +-`CLIP`."""
        return (x - self.shift).mul_(self.scale).clamp_(-CLIP, CLIP)

    def describe(self, trunk: Trunk, x: str) -> str:
        """The same as an operation of ``trunk`` on value ``x``."""
        return trunk.add("normalise", x, self.shift, self.scale, clip=CLIP)

    def unnormalise(self, x: Tensor) -> Tensor:
        """The inverse of `forward` for values it did not cut."""
        return x / self.scale + self.shift

    @torch.no_grad()
    def merge(self, x: Tensor, valid: Tensor) -> None:
        """Take in ``x`` [..., *shape] where ``valid`` bool [...] (Chan, Golub, LeVeque 1979).

        Rows with a value that is not finite are left out and counted in ``rejected``.
        """
        rows = x[valid].to(torch.float64).reshape(-1, *self.mean.shape)
        finite = torch.isfinite(rows.flatten(1)).all(1) if rows.ndim > 1 else torch.isfinite(rows)
        self.rejected += (~finite).sum()
        rows = rows[finite]
        added = rows.shape[0]
        if not added:
            return
        mean = rows.mean(0)
        var = rows.var(0, unbiased=False)
        total = self.count + added
        delta = mean - self.mean
        sum_of_squares = self.var * self.count + var * added + delta**2 * (self.count * added / total)
        self.mean += delta * (added / total)
        self.var.copy_(sum_of_squares / total)
        self.count.copy_(total)
        self._refresh()

    def _refresh(self) -> None:
        std = self.var.sqrt()
        usable = std > SMALLEST_STD * self.mean.abs().clamp(min=1.0)
        self.shift.copy_(self.mean)
        self.scale.copy_(torch.where(usable, 1.0 / std, torch.ones_like(std)))


class Normalisers(nn.ModuleDict):
    """One `Normaliser` per observation key, shared by policy and critic."""

    def of(self, key: str) -> Normaliser | None:
        """The normaliser of ``key``, if it has one."""
        return self._modules.get(_module_name(key))  # type: ignore[return-value]

    def add(self, key: str, shape: tuple[int, ...]) -> None:
        """Give ``key`` a normaliser, once."""
        if _module_name(key) not in self:
            self[_module_name(key)] = Normaliser(shape)


@functools.lru_cache(maxsize=1024)
def _module_name(key: str) -> str:
    return "obs_" + key.replace(".", "|")
