"""Gaussian distributions of continuous actions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from rollbus_core import rng
from rollbus_policies._bounds import Bounds
from rollbus_policies._head_base import Head
from rollbus_policies._samplers import (
    DeterministicSampler,
    GaussianSampler,
    Sampler,
    StateGaussianSampler,
    TanhGaussianSampler,
)
from rollbus_wire.errors import SpecError
from rollbus_wire.spec import ActionSpec

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_LOG_2 = math.log(2.0)


class Gaussian(Head):
    """Diagonal Gaussian with a learned state-independent log_std. Parameters: (mean, log_std).

    The stored action is the raw value; executed are its [-1, 1] units scaled to the bounds and clipped.
    """

    def __init__(self, spec: ActionSpec, log_std_init: float) -> None:
        super().__init__()
        self.bounds = Bounds(spec)
        self.size = self.num_params = spec.size
        self.action = ("float32", spec.shape)
        self.log_std = nn.Parameter(torch.full((spec.size,), float(log_std_init)))

    def forward(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        return raw, self.log_std

    def noise(self, seeds: np.ndarray) -> np.ndarray:
        return rng.normal(seeds, self.size)

    def random(self, seeds: np.ndarray) -> np.ndarray:
        unit = 2.0 * rng.uniform(seeds, self.size) - 1.0
        return self.bounds.shaped(unit.astype(np.float32))

    def mode(self, params: tuple[Tensor, Tensor]) -> Tensor:
        return self._shaped(params[0])

    def sample(self, params: tuple[Tensor, Tensor], noise: Tensor) -> Tensor:
        mean, log_std = params
        return self._shaped(torch.addcmul(mean, log_std.exp(), noise))

    def log_probs(self, params: tuple[Tensor, Tensor], action: Tensor) -> Tensor:
        return self._elements(params, self._flat(action))

    def entropies(self, params: tuple[Tensor, Tensor]) -> Tensor:
        mean, log_std = params
        return (log_std + (0.5 + _HALF_LOG_2PI)).expand_as(mean)

    def sampler(self) -> Sampler:
        return GaussianSampler(self)

    def squash(self, action: Tensor) -> Tensor:
        return action.clamp(-1.0, 1.0)

    def env_action(self, action: np.ndarray) -> np.ndarray:
        return self.bounds.scale(action)

    def executed(self, action: Tensor) -> Tensor:
        return self.bounds.scale_tensor(action)

    def from_env_action(self, action: np.ndarray) -> np.ndarray:
        return self.bounds.unscale(action)

    @staticmethod
    def _elements(params: tuple[Tensor, Tensor], action: Tensor) -> Tensor:
        mean, log_std = params
        z = (action - mean) * torch.exp(-log_std)
        return -0.5 * z * z - (log_std + _HALF_LOG_2PI)

    def _flat(self, action: Tensor) -> Tensor:
        return action if len(self.action[1]) == 1 else _flatten(action, len(self.action[1]))

    def _shaped(self, flat: Tensor) -> Tensor:
        shape = self.action[1]
        return flat if len(shape) == 1 else flat.unflatten(-1, shape) if shape else flat.squeeze(-1)


class StateGaussian(Gaussian):
    """Diagonal Gaussian whose log_std comes from the network, clamped. Parameters: (mean, log_std)."""

    def __init__(self, spec: ActionSpec, log_std_init: float) -> None:
        super().__init__(spec, log_std_init)
        del self.log_std
        self.log_std_init = log_std_init
        self.num_params = 2 * spec.size

    def initial_bias(self) -> Tensor:
        return torch.zeros(self.num_params).index_fill_(
            0, torch.arange(self.size, self.num_params), self.log_std_init
        )

    def forward(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = raw.chunk(2, -1)
        return mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)

    def sampler(self) -> Sampler:
        return StateGaussianSampler(self, (LOG_STD_MIN, LOG_STD_MAX))


class TanhGaussian(StateGaussian):
    """Gaussian squashed by tanh (Haarnoja et al. 2018, appendix C), log_std from the network.

    The stored action is the PRE-SQUASH value u; `log_prob` is that of tanh(u) in [-1, 1] units, with
    log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u)), so tanh is never inverted.
    """

    reparameterised = True
    #: A demonstration at a bound becomes atanh of this.
    LARGEST = 1.0 - 1e-6
    nodes: Tensor
    weights: Tensor

    def __init__(self, spec: ActionSpec, log_std_init: float) -> None:
        super().__init__(spec, log_std_init)
        if not self.bounds.finite:
            raise SpecError(
                f"head tanh_gaussian needs finite action bounds, not {spec.low} to {spec.high}; "
                "give the action space bounds, or, if the algorithm can do with it, set policy.head: gaussian"
            )
        nodes, weights = np.polynomial.hermite.hermgauss(24)
        for name, value in (("nodes", nodes * math.sqrt(2)), ("weights", weights / math.sqrt(math.pi))):
            self.register_buffer(name, torch.tensor(value, dtype=torch.float32), persistent=False)

    @property
    def num_noise(self) -> int:
        return self.size

    def random(self, seeds: np.ndarray) -> np.ndarray:
        return np.arctanh(np.clip(super().random(seeds), -self.LARGEST, self.LARGEST)).astype(np.float32)

    def log_probs(self, params: tuple[Tensor, Tensor], action: Tensor) -> Tensor:
        u = self._flat(action)
        return self._elements(params, u) - _log_slope(u)

    def entropies(self, params: tuple[Tensor, Tensor]) -> Tensor:
        """By Gauss-Hermite quadrature of E[log(1 - tanh(u)^2)]: no noise, differentiable."""
        mean, log_std = params
        u = mean.unsqueeze(-1) + log_std.exp().unsqueeze(-1) * self.nodes
        return super().entropies(params) + _log_slope(u) @ self.weights

    def sampler(self) -> Sampler:
        limits = (LOG_STD_MIN, LOG_STD_MAX)
        return TanhGaussianSampler(self, limits, self.nodes.cpu().numpy(), self.weights.cpu().numpy())

    def squash(self, action: Tensor) -> Tensor:
        return torch.tanh(action)

    def env_action(self, action: np.ndarray) -> np.ndarray:
        return self.bounds.scale(np.tanh(action))

    def executed(self, action: Tensor) -> Tensor:
        return self.bounds.scale_tensor(torch.tanh(action))

    def from_env_action(self, action: np.ndarray) -> np.ndarray:
        unit = np.clip(self.bounds.unscale(action).astype(np.float64), -self.LARGEST, self.LARGEST)
        return np.arctanh(unit).astype(np.float32)


class Deterministic(Gaussian):
    """tanh of the network's output (TD3, 1802.09477). Parameters: (action in [-1, 1], deviation).

    `sample` adds Gaussian noise of deviation ``exploration`` and clips; so there is no density. The stored
    action is what is executed, in [-1, 1] units.
    """

    has_density = False
    gives = frozenset({"deterministic"})
    exploration: Tensor

    def __init__(self, spec: ActionSpec, log_std_init: float) -> None:
        super().__init__(spec, log_std_init)
        if not self.bounds.finite:
            raise SpecError(f"head deterministic needs finite action bounds, not {spec.low} to {spec.high}")
        del self.log_std
        self.register_buffer("exploration", torch.zeros(()))

    def forward(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tanh(raw), self.exploration

    def sample(self, params: tuple[Tensor, Tensor], noise: Tensor) -> Tensor:
        mean, deviation = params
        return self._shaped((mean + deviation * noise).clamp(-1.0, 1.0))

    def give(self, name: str, params: Any) -> Tensor:
        return self.mode(params) if name in self.gives else super().give(name, params)

    def explore(self, amount: float) -> None:
        self.exploration.fill_(amount)

    def sampler(self) -> Sampler:
        return DeterministicSampler(self)


def _log_slope(u: Tensor) -> Tensor:
    """log(1 - tanh(u)^2), finite for every finite u."""
    return 2.0 * (_LOG_2 - u - functional.softplus(-2.0 * u))


def _flatten(x: Tensor, event_dims: int) -> Tensor:
    return x.unsqueeze(-1) if event_dims == 0 else x.flatten(x.ndim - event_dims)
