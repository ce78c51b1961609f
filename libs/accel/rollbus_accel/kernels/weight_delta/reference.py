"""Changed elements in plain torch; the tensors are flat and viewed as integers."""

from __future__ import annotations

from torch import Tensor


def weight_delta(old: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """As the public function."""
    indices = (old != new).nonzero().squeeze(1)
    return indices.int(), new[indices]


def apply_delta(target: Tensor, indices: Tensor, values: Tensor) -> None:
    """As the public function."""
    target[indices.long()] = values
