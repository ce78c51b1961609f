"""The network of value models over observations."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from rollbus_policies._context import Context, pooled
from rollbus_policies._normaliser import Normalisers
from rollbus_policies._transforms import is_vector
from rollbus_wire.spec import EnvSpec


class Encoder(nn.Module):
    """Observations of the policy's group to [B, width]."""

    def __init__(self, spec: EnvSpec, width: int) -> None:
        super().__init__()
        self.keys = spec.group("policy")
        self.normaliser = Normalisers()
        for key in self.keys:
            if is_vector(spec.observation[key]):
                self.normaliser.add(key, spec.observation[key].shape)
        self.context = Context(spec, self.keys, 1, width=width, layers=1, num_heads=2)
        self.body = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())

    def see(self, obs: Mapping[str, Tensor]) -> None:
        """Statistics of ``obs`` [S, ...]."""
        for key in self.keys:
            normaliser = self.normaliser.of(key)
            if normaliser is not None:
                normaliser.merge(obs[key], torch.ones(len(obs[key]), dtype=torch.bool))

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        read = {key: obs[key] for key in self.keys}
        return self.body(pooled(*self.context(read, self.normaliser)))
