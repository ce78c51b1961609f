"""A head around another one: what it does not do its own way is the inner head's."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from rollbus_policies._head_base import Head
from rollbus_policies._samplers import Sampler
from rollbus_wire.errors import SpecError


class Around(Head):
    """``inner``; a subclass says in ``no_sampler`` why only torch samples it."""

    def __init__(self, inner: Head) -> None:
        super().__init__()
        self.inner, self.num_params, self.action = inner, inner.num_params, inner.action
        self.reparameterised, self.has_density = inner.reparameterised, inner.has_density
        self.gives, self.reads_features = inner.gives, inner.reads_features

    @property
    def num_noise(self) -> int:
        return self.inner.num_noise

    def forward(self, raw: Tensor, *given: Tensor) -> Any:
        return self.inner(raw, *given)

    def noise(self, seeds: np.ndarray) -> np.ndarray:
        return self.inner.noise(seeds)

    def random(self, seeds: np.ndarray) -> np.ndarray:
        return self.inner.random(seeds)

    def anything(self, params: Any, seeds: np.ndarray) -> Tensor:
        return self.inner.anything(params, seeds)

    def read(self, num_features: int) -> None:
        self.inner.read(num_features)

    def mode(self, params: Any) -> Tensor:
        return self.inner.mode(params)

    def sample(self, params: Any, noise: Tensor) -> Tensor:
        return self.inner.sample(params, noise)

    def give(self, name: str, params: Any) -> Tensor:
        return self.inner.give(name, params)

    def explore(self, amount: float) -> None:
        self.inner.explore(amount)

    def squash(self, action: Tensor) -> Tensor:
        return self.inner.squash(action)

    def env_action(self, action: np.ndarray) -> np.ndarray:
        return self.inner.env_action(action)

    def executed(self, action: Tensor) -> Tensor:
        return self.inner.executed(action)

    def from_env_action(self, action: np.ndarray) -> np.ndarray:
        return self.inner.from_env_action(action)

    def sampler(self) -> Sampler:
        raise SpecError(f"{self.no_sampler}; set actor.engine: torch_local")

    def initial_bias(self) -> Tensor:
        return self.inner.initial_bias()
