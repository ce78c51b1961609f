"""Networks from observations to a number in [0, 1]."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from rollbus_learner.labellers._encoder import Encoder
from rollbus_wire.spec import EnvSpec


class Score(nn.Module):
    """``sigmoid(scale x logit + shift)`` [B]; scale and shift are 1 and 0 until somebody calibrates them."""

    scale: Tensor
    shift: Tensor

    def __init__(self, spec: EnvSpec, width: int) -> None:
        super().__init__()
        self.encoder, self.head = Encoder(spec, width), nn.Linear(width, 1)
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("shift", torch.zeros(()))

    @property
    def keys(self) -> tuple[str, ...]:
        """Observations that it reads."""
        return tuple(self.encoder.keys)

    def see(self, obs: Mapping[str, Tensor]) -> None:
        """Statistics of ``obs`` [S, ...]."""
        self.encoder.see(obs)

    def logits(self, obs: Mapping[str, Tensor]) -> Tensor:
        """[B], not calibrated."""
        found: Tensor = self.head(self.encoder(obs)).squeeze(-1)
        return found

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        return torch.sigmoid(self.scale * self.logits(obs) + self.shift)


class Least(nn.Module):
    """The least of several `Score`."""

    def __init__(self, spec: EnvSpec, width: int, num: int, seed: int) -> None:
        super().__init__()
        members = []
        for number in range(num):
            torch.manual_seed(seed * 1000 + number)
            members.append(Score(spec, width))
        self.members = nn.ModuleList(members)

    @property
    def keys(self) -> tuple[str, ...]:
        """Observations that it reads."""
        first = self.members[0]
        assert isinstance(first, Score)
        return first.keys

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        return torch.stack([member(obs) for member in self.members]).amin(0)
