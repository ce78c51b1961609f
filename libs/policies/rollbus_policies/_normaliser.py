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

    def __init__(self, shape: tuple[int, ...], padded: bool = False) -> None:
        """``padded``: rows have only some of the elements, so each is counted by itself."""
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("var", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros(shape if padded else (), dtype=torch.float64))
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
    def merge(self, x: Tensor, valid: Tensor, own: Tensor | None = None) -> None:
        """Take in ``x`` [..., *shape] where ``valid`` bool [...] (Chan, Golub, LeVeque 1979).

        Rows with a value that is not finite are left out and counted in ``rejected``. ``own`` bool
        [..., *shape]: elements that are no padding.
        """
        if own is not None:
            self._merge_own(
                torch.where(own, x, torch.zeros((), dtype=x.dtype, device=x.device))[valid], own[valid]
            )
            return
        rows = x[valid].to(torch.float64).reshape(-1, *self.mean.shape)
        finite = torch.isfinite(rows.flatten(1)).all(1) if rows.ndim > 1 else torch.isfinite(rows)
        self.rejected += (~finite).sum()
        rows = rows[finite]
        added = rows.shape[0]
        if not added:
            return
        self._join(rows.mean(0), rows.var(0, unbiased=False), added)

    def _merge_own(self, x: Tensor, own: Tensor) -> None:
        """`merge` of rows [B, *shape] that hold zeros where they do not ``own`` the element."""
        rows = x.to(torch.float64)
        finite = torch.isfinite(rows.flatten(1)).all(1)
        self.rejected += (~finite).sum()
        rows, own = rows[finite], own[finite]
        added = own.sum(0)
        mean = rows.sum(0) / added.clamp(min=1)
        deviation = torch.where(own, rows - mean, torch.zeros_like(rows))
        self._join(mean, (deviation**2).sum(0) / added.clamp(min=1), added)

    def _join(self, mean: Tensor, var: Tensor, added: Tensor | int) -> None:
        """Mean and variance of ``added`` more values of all, or of each, element."""
        total = self.count + added
        some = total.clamp(min=1)
        delta = mean - self.mean
        sum_of_squares = self.var * self.count + var * added + delta**2 * (self.count * added / some)
        self.mean += delta * (added / some)
        self.var.copy_(torch.where(total > 0, sum_of_squares / some, self.var))
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

    def add(self, key: str, shape: tuple[int, ...], padded: bool = False) -> None:
        """Give ``key`` a normaliser, once."""
        if _module_name(key) not in self:
            self[_module_name(key)] = Normaliser(shape, padded)


@functools.lru_cache(maxsize=1024)
def _module_name(key: str) -> str:
    return "obs_" + key.replace(".", "|")
