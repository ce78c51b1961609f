"""Action distributions.

A head turns the raw output of a network ``[..., num_params]`` into parameters (``head(raw)``); all
other methods take these. A *stored* action is what the learner scores (class index, Gaussian value,
pre-squash value); ``env_action`` is what the environment executes, in its bounds. Noise is passed in,
so that a row's sample is a function of its own seed.
Symbols: A action dimensions, D discrete dimensions, n classes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from rollbus_core import rng
from rollbus_policies._bounds import Bounds
from rollbus_policies._samplers import (
    CategoricalSampler,
    GaussianSampler,
    MultiCategoricalSampler,
    Sampler,
    TanhGaussianSampler,
)
from rollbus_wire.errors import SpecError
from rollbus_wire.spec import ActionSpec

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
#: Logit of a class that does not exist: finite, so that p log p stays 0.
_ABSENT = -1e9
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_LOG_2 = math.log(2.0)


class Head(nn.Module):
    """One action distribution."""

    #: Width of the network's output.
    num_params: int
    #: dtype and shape per row of the stored action.
    action: tuple[str, tuple[int, ...]]
    #: Whether samples carry gradient (`rsample`).
    reparameterised = False

    def noise(self, seeds: np.ndarray) -> np.ndarray:
        """What `sample` needs for rows with ``seeds`` uint64 [B]."""
        raise NotImplementedError

    def random(self, seeds: np.ndarray) -> np.ndarray:
        """Stored actions [B, ...] that are uniform over the action space."""
        raise NotImplementedError

    def mode(self, params: Any) -> Tensor:
        """The stored action that `sample` is centred on."""
        raise NotImplementedError

    def sample(self, params: Any, noise: Tensor) -> Tensor:
        """A stored action, made from ``noise`` [..., num_noise]."""
        raise NotImplementedError

    def log_prob(self, params: Any, action: Tensor) -> Tensor:
        """[...] of stored ``action``."""
        raise NotImplementedError

    def entropy(self, params: Any) -> Tensor:
        """[...] in nats."""
        raise NotImplementedError

    def squash(self, action: Tensor) -> Tensor:
        """Stored ``action`` in units of [-1, 1], as action-value functions take it."""
        raise SpecError(f"{type(self).__name__}: discrete actions have no [-1, 1] units")

    def env_action(self, action: np.ndarray) -> np.ndarray:
        """What the environment executes for stored ``action``."""
        return action

    def from_env_action(self, action: np.ndarray) -> np.ndarray:
        """The stored action that executes as ``action`` (demonstrations); always finite."""
        return action

    def sampler(self) -> Sampler:
        """The same in numpy."""
        raise NotImplementedError

    def initial_bias(self) -> Tensor:
        """Initial bias [num_params] of the layer before the head."""
        return torch.zeros(self.num_params)


class Categorical(Head):
    """One choice among n. Parameters: log-probabilities [..., n]."""

    def __init__(self, num: int) -> None:
        super().__init__()
        self.num_params = num
        self.action = ("int64", ())

    def forward(self, raw: Tensor) -> Tensor:
        return torch.log_softmax(raw, -1)

    def noise(self, seeds: np.ndarray) -> np.ndarray:
        return race(rng.uniform(seeds, self.num_params))

    def random(self, seeds: np.ndarray) -> np.ndarray:
        return (rng.uniform(seeds, 1)[:, 0] * self.num_params).astype(np.int64)

    def mode(self, params: Tensor) -> Tensor:
        return params.argmax(-1)

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        return first_to_finish(params, noise)

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        return params.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self, params: Tensor) -> Tensor:
        return _categorical_entropy(params)

    def sampler(self) -> Sampler:
        return CategoricalSampler(self)


class MultiCategorical(Head):
    """D independent choices. Parameters: log-probabilities [..., D, max n], absent classes padded."""

    index: Tensor
    absent: Tensor

    def __init__(self, num: list[int]) -> None:
        super().__init__()
        self.num = np.asarray(num, np.int64)
        self.num_params, self.widest = int(self.num.sum()), max(num)
        self.action = ("int64", (len(num),))
        classes = torch.arange(self.widest)
        absent = classes >= torch.tensor(num)[:, None]
        starts = torch.tensor(np.concatenate([[0], np.cumsum(self.num)[:-1]]))
        index = (starts[:, None] + classes).masked_fill(absent, 0)
        self.register_buffer("index", index, persistent=False)
        self.register_buffer("absent", absent, persistent=False)

    def forward(self, raw: Tensor) -> Tensor:
        return torch.log_softmax(raw[..., self.index].masked_fill(self.absent, _ABSENT), -1)

    def noise(self, seeds: np.ndarray) -> np.ndarray:
        count = len(self.num)
        return race(rng.uniform(seeds, count * self.widest)).reshape(-1, count, self.widest)

    def random(self, seeds: np.ndarray) -> np.ndarray:
        return (rng.uniform(seeds, len(self.num)) * self.num).astype(np.int64)

    def mode(self, params: Tensor) -> Tensor:
        return params.argmax(-1)

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        return first_to_finish(params, noise)

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        return params.gather(-1, action.unsqueeze(-1)).squeeze(-1).sum(-1)

    def entropy(self, params: Tensor) -> Tensor:
        return _categorical_entropy(params).sum(-1)

    def sampler(self) -> Sampler:
        return MultiCategoricalSampler(self, self.index.cpu().numpy(), self.absent.cpu().numpy(), _ABSENT)


class Gaussian(Head):
    """Diagonal Gaussian with a learned state-independent log_std. Parameters: (mean, log_std).

    The stored action is the raw value; executed are its [-1, 1] units scaled to the bounds and clipped.
    """

    def __init__(self, spec: ActionSpec, log_std_init: float) -> None:
        super().__init__()
        self.bounds = Bounds(spec)
        self.num_params = spec.size
        self.action = ("float32", spec.shape)
        self.log_std = nn.Parameter(torch.full((spec.size,), float(log_std_init)))

    def forward(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        return raw, self.log_std

    def noise(self, seeds: np.ndarray) -> np.ndarray:
        return rng.normal(seeds, self.num_params)

    def random(self, seeds: np.ndarray) -> np.ndarray:
        unit = 2.0 * rng.uniform(seeds, self.num_params) - 1.0
        return self.bounds.shaped(unit.astype(np.float32))

    def mode(self, params: tuple[Tensor, Tensor]) -> Tensor:
        return self._shaped(params[0])

    def sample(self, params: tuple[Tensor, Tensor], noise: Tensor) -> Tensor:
        mean, log_std = params
        return self._shaped(torch.addcmul(mean, log_std.exp(), noise))

    def log_prob(self, params: tuple[Tensor, Tensor], action: Tensor) -> Tensor:
        return self._elements(params, self._flat(action)).sum(-1)

    def entropy(self, params: tuple[Tensor, Tensor]) -> Tensor:
        mean, log_std = params
        return (log_std + (0.5 + _HALF_LOG_2PI)).expand_as(mean).sum(-1)

    def sampler(self) -> Sampler:
        return GaussianSampler(self)

    def squash(self, action: Tensor) -> Tensor:
        return action.clamp(-1.0, 1.0)

    def env_action(self, action: np.ndarray) -> np.ndarray:
        return self.bounds.scale(action)

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
        return flat if len(shape) == 1 else flat.reshape(*flat.shape[:-1], *shape)


class TanhGaussian(Gaussian):
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
                "set policy.head: gaussian"
            )
        del self.log_std
        self.log_std_init = log_std_init
        self.num_params = 2 * spec.size
        nodes, weights = np.polynomial.hermite.hermgauss(24)
        for name, value in (("nodes", nodes * math.sqrt(2)), ("weights", weights / math.sqrt(math.pi))):
            self.register_buffer(name, torch.tensor(value, dtype=torch.float32), persistent=False)

    def initial_bias(self) -> Tensor:
        return torch.zeros(self.num_params).index_fill_(
            0, torch.arange(self.num_params // 2, self.num_params), self.log_std_init
        )

    def forward(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = raw.chunk(2, -1)
        return mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)

    def noise(self, seeds: np.ndarray) -> np.ndarray:
        return rng.normal(seeds, self.num_params // 2)

    def random(self, seeds: np.ndarray) -> np.ndarray:
        unit = 2.0 * rng.uniform(seeds, self.num_params // 2) - 1.0
        return self.bounds.shaped(np.arctanh(np.clip(unit, -self.LARGEST, self.LARGEST)).astype(np.float32))

    def log_prob(self, params: tuple[Tensor, Tensor], action: Tensor) -> Tensor:
        u = self._flat(action)
        return (self._elements(params, u) - _log_slope(u)).sum(-1)

    def entropy(self, params: tuple[Tensor, Tensor]) -> Tensor:
        """By Gauss-Hermite quadrature of E[log(1 - tanh(u)^2)]: no noise, differentiable."""
        mean, log_std = params
        u = mean.unsqueeze(-1) + log_std.exp().unsqueeze(-1) * self.nodes
        return super().entropy(params) + (_log_slope(u) @ self.weights).sum(-1)

    def sampler(self) -> Sampler:
        limits = (LOG_STD_MIN, LOG_STD_MAX)
        return TanhGaussianSampler(self, limits, self.nodes.cpu().numpy(), self.weights.cpu().numpy())

    def squash(self, action: Tensor) -> Tensor:
        return torch.tanh(action)

    def env_action(self, action: np.ndarray) -> np.ndarray:
        return self.bounds.scale(np.tanh(action))

    def from_env_action(self, action: np.ndarray) -> np.ndarray:
        unit = np.clip(self.bounds.unscale(action).astype(np.float64), -self.LARGEST, self.LARGEST)
        return np.arctanh(unit).astype(np.float32)


def make_head(kind: str, spec: ActionSpec, log_std_init: float = 0.0) -> Head:
    """The head for ``spec``; ``kind`` ("auto", "gaussian", "tanh_gaussian") chooses among continuous ones."""
    if spec.kind == "continuous":
        return (TanhGaussian if kind == "tanh_gaussian" else Gaussian)(spec, log_std_init)
    if kind != "auto":
        raise SpecError(
            f"policy.head: {kind} needs continuous actions, these are {spec.kind}; set head: auto"
        )
    if spec.kind == "discrete":
        return Categorical(spec.num[0])
    if len(spec.shape) != 1:
        raise SpecError(f"multi_discrete actions of shape {list(spec.shape)}; one dimension is supported")
    return MultiCategorical(spec.num)


def race(uniform: np.ndarray) -> np.ndarray:
    """Minus exponentially distributed finishing times, float32."""
    return np.log1p(-uniform).astype(np.float32)


def first_to_finish(log_probs: Tensor, noise: Tensor) -> Tensor:
    """int64 [...]: the first of exponential clocks with rates p, which is class i with probability p_i."""
    return (log_probs.exp() / noise).argmin(-1)


def _categorical_entropy(log_probs: Tensor) -> Tensor:
    return -(log_probs.exp() * log_probs).sum(-1)


def _log_slope(u: Tensor) -> Tensor:
    """log(1 - tanh(u)^2), finite for every finite u."""
    return 2.0 * (_LOG_2 - u - functional.softplus(-2.0 * u))


def _flatten(x: Tensor, event_dims: int) -> Tensor:
    return x.unsqueeze(-1) if event_dims == 0 else x.flatten(x.ndim - event_dims)
