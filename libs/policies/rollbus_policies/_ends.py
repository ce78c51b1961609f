"""How the end of a generative policy's chain becomes an action in [-1, 1] units."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional


class Clip:
    """Cut at the bounds; there is no density there."""

    def to_unit(self, end: Tensor) -> Tensor:
        """The action that ``end`` becomes."""
        return end.clamp(-1.0, 1.0)

    def from_unit(self, unit: Tensor) -> Tensor:
        """An end that becomes ``unit``; finite."""
        return unit

    def log_slope(self, end: Tensor) -> Tensor:
        """Log-determinant [...] of `to_unit` at ``end`` [..., A], where it has one."""
        return torch.zeros(end.shape[:-1], device=end.device)


class Tanh(Clip):
    """Squashed: the density changes by ``1 - tanh(end)^2``."""

    #: A demonstration at a bound would be infinitely far away.
    LARGEST = 0.999

    def to_unit(self, end: Tensor) -> Tensor:
        return torch.tanh(end)

    def from_unit(self, unit: Tensor) -> Tensor:
        return torch.atanh(unit.clamp(-self.LARGEST, self.LARGEST))

    def log_slope(self, end: Tensor) -> Tensor:
        return (2.0 * (math.log(2.0) - end - functional.softplus(-2.0 * end))).sum(-1)
