"""Bounds of continuous actions: [-1, 1] units <-> the environment's own."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rollbus_wire.spec import ActionSpec


class Bounds:
    """Affine map of each action element from [-1, 1] to [low, high].

    An element without finite bounds keeps its raw units. Bounds are rounded inwards to float32, so
    that no executed action exceeds the stated ones.
    """

    def __init__(self, spec: ActionSpec) -> None:
        low, high = np.asarray(spec.low, np.float64), np.asarray(spec.high, np.float64)
        finite = np.isfinite(low) & np.isfinite(high)
        self.finite = bool(finite.all())
        with np.errstate(invalid="ignore"):
            centre, half = np.where(finite, (low + high) / 2, 0.0), np.where(finite, (high - low) / 2, 1.0)
        self._shape = spec.shape
        self._centre, self._half, self.low, self.high = (
            a.astype(np.float32).reshape(spec.shape)
            for a in (centre, half, _rounded(low, np.inf), _rounded(high, -np.inf))
        )
        self._identity = not self._centre.any() and bool((self._half == 1).all())

    def scale(self, unit: np.ndarray) -> np.ndarray:
        """float32 [..., *shape] from [-1, 1] units to the environment's, clipped."""
        if not self._identity:
            unit = self._centre + self._half * unit
        return np.minimum(np.maximum(unit, self.low), self.high)

    def scale_tensor(self, unit: Tensor) -> Tensor:
        """`scale` of a tensor [..., *shape]."""
        centre, half, low, high = (
            torch.from_numpy(a).to(unit.device) for a in (self._centre, self._half, self.low, self.high)
        )
        return torch.minimum(torch.maximum(centre + half * unit, low), high)

    def unscale(self, action: np.ndarray) -> np.ndarray:
        """The inverse of `scale` inside the bounds."""
        return ((np.asarray(action, np.float32) - self._centre) / self._half).astype(np.float32)

    def shaped(self, flat: np.ndarray) -> np.ndarray:
        """[B, A] as [B, *shape]."""
        return flat.reshape(-1, *self._shape)


def _rounded(bound: np.ndarray, inwards: float) -> np.ndarray:
    """``bound`` in float32, on the side of ``inwards`` where it is not exact."""
    near = bound.astype(np.float32)
    outside = near < bound if inwards > 0 else near > bound
    return np.where(outside, np.nextafter(near, np.float32(inwards)), near)
