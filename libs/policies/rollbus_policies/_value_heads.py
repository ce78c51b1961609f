"""How the last layer of a critic becomes a value: one number, or the mean of a distribution over atoms.

Heads have no parameters; a critic ends in as many numbers as its head takes.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from rollbus_policies._networks import VALUE_GAIN, linear
from rollbus_policies.trunk import Trunk


class Scalar(nn.Module):
    """The number itself, trained by an error of it."""

    def layer(self, size_in: int, init: str) -> nn.Linear:
        """That makes what this takes."""
        return linear(size_in, 1, init, VALUE_GAIN)

    def forward(self, raw: Tensor) -> Tensor:
        """V [...] of ``raw`` [..., 1]."""
        return raw.squeeze(-1)

    def describe(self, trunk: Trunk, raw: str) -> str:
        """The same as operations of ``trunk``."""
        return trunk.add("reshape", raw, shape=())


class TwoHot(nn.Module):
    """Logits of K atoms; the value is the mean, and two neighbours share what lies between them.

    Trained by `loss`, a cross-entropy (C51's support, 1707.06887, with the two-hot targets of DreamerV3,
    2301.04104); a target beyond the atoms counts as the last one.
    """

    atoms: Tensor

    def __init__(self, atoms: Tensor, gain: float = 0.0) -> None:
        """``atoms`` float32 [K], rising. ``gain``: of the first weights; with 0 all atoms begin alike."""
        super().__init__()
        if len(atoms) < 2 or not bool((atoms[1:] > atoms[:-1]).all()):
            raise ValueError(f"atoms {atoms.tolist()}; it needs two or more that rise")
        self.num, self._gain = len(atoms), gain
        self.register_buffer("atoms", atoms, persistent=False)

    def layer(self, size_in: int, init: str) -> nn.Linear:
        """That makes what this takes; orthogonal whatever ``init`` says, for weights like torch's own make
        values as large as the atoms."""
        return linear(size_in, self.num, "orthogonal", self._gain)

    def forward(self, raw: Tensor) -> Tensor:
        """V [...] of ``raw`` [..., K]."""
        return (raw.softmax(-1) * self.atoms).sum(-1)

    def loss(self, raw: Tensor, target: Tensor) -> Tensor:
        """Cross-entropy [...] in nats of ``raw`` [..., K] to ``target`` [...]."""
        return -(self.two_hot(target) * raw.log_softmax(-1)).sum(-1)

    def two_hot(self, target: Tensor) -> Tensor:
        """Weights [..., K] whose mean over the atoms is ``target`` [...]."""
        within = target.clamp(self.atoms[0], self.atoms[-1]).contiguous()
        above = torch.bucketize(within, self.atoms, right=True).clamp(1, self.num - 1)
        low, high = self.atoms[above - 1], self.atoms[above]
        share = ((within - low) / (high - low)).unsqueeze(-1)
        weights = torch.zeros(*target.shape, self.num, dtype=share.dtype, device=share.device)
        both, shares = torch.stack([above - 1, above], -1), torch.cat([1.0 - share, share], -1)
        return weights.scatter(-1, both, shares)

    def describe(self, trunk: Trunk, raw: str) -> str:
        """The same as operations of ``trunk``."""
        return trunk.add("expectation", raw, atoms=self.atoms.tolist())


def symexp_atoms(limit: float, num: int) -> Tensor:
    """Float32 [num] from -``limit`` to ``limit``, dense around 0: even in sign(x) log(1 + abs(x)), as
    DreamerV3 places them."""
    even = torch.linspace(-math.log1p(limit), math.log1p(limit), num, dtype=torch.float64)
    return (even.sign() * even.abs().expm1()).float()


def make_value_head(config: Any) -> Scalar | TwoHot:
    """That of ``config``, which has value_head, value_atoms and value_limit."""
    if config.value_head == "scalar":
        return Scalar()
    return TwoHot(symexp_atoms(config.value_limit, config.value_atoms))
