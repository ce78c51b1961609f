"""Distributions over classes: one choice, several, and continuous actions cut into bins."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rollbus_core import rng
from rollbus_policies._bounds import Bounds
from rollbus_policies._head_base import Head
from rollbus_policies._samplers import CategoricalSampler, MultiCategoricalSampler, QSampler, Sampler
from rollbus_wire.errors import SpecError
from rollbus_wire.spec import ActionSpec

#: Logit of a class that does not exist: finite, so that p log p stays 0.
_ABSENT = -1e9


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


class QValues(Categorical):
    """Q of each of n actions (DQN). Parameters: Q [..., n].

    `sample` is greedy, but uniform with probability ``exploration``; there is no density. ``dueling``: the
    network gives V and n advantages, whose mean is taken off (1511.06581).
    """

    has_density = False
    gives = frozenset({"q_values"})
    exploration: Tensor

    def __init__(self, num: int, *, dueling: bool) -> None:
        super().__init__(num)
        self.num, self.dueling, self.num_params = num, dueling, num + dueling
        self.register_buffer("exploration", torch.zeros(()))

    def forward(self, raw: Tensor) -> Tensor:
        if not self.dueling:
            return raw
        advantage = raw[..., 1:]
        return raw[..., :1] + advantage - advantage.mean(-1, keepdim=True)

    def noise(self, seeds: np.ndarray) -> np.ndarray:
        return rng.uniform(seeds, 2)

    def random(self, seeds: np.ndarray) -> np.ndarray:
        return (rng.uniform(seeds, 1)[:, 0] * self.num).astype(np.int64)

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        anything = (noise[..., 1] * self.num).long()
        return torch.where(noise[..., 0] < self.exploration, anything, self.mode(params))

    def give(self, name: str, params: Any) -> Tensor:
        return params if name in self.gives else super().give(name, params)

    def explore(self, amount: float) -> None:
        self.exploration.fill_(amount)

    def sampler(self) -> Sampler:
        return QSampler(self)


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

    def log_probs(self, params: Tensor, action: Tensor) -> Tensor:
        return params.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropies(self, params: Tensor) -> Tensor:
        return _categorical_entropy(params)

    def sampler(self) -> Sampler:
        return MultiCategoricalSampler(self, self.index.cpu().numpy(), self.absent.cpu().numpy(), _ABSENT)


class Bins(MultiCategorical):
    """Each element of a continuous action is one of n equal bins of its bounds, by a choice of its own.

    The stored action is the bin's number, int64 [A]; its centre is executed. `log_prob` is that of the
    choices, a probability and no density.
    """

    def __init__(self, spec: ActionSpec, num_bins: int) -> None:
        super().__init__([num_bins] * spec.size)
        self.bounds, self.num_bins = Bounds(spec), num_bins
        if not self.bounds.finite:
            raise SpecError(
                f"head bins needs finite action bounds, not {spec.low} to {spec.high}; "
                "give the action space bounds, or, if the algorithm can do with it, set policy.head: gaussian"
            )

    def env_action(self, action: np.ndarray) -> np.ndarray:
        unit = ((action + 0.5) * (2.0 / self.num_bins) - 1.0).astype(np.float32)
        return self.bounds.scale(self.bounds.shaped(unit))

    def executed(self, action: Tensor) -> Tensor:
        return self.bounds.scale_tensor(self.squash(action).reshape(-1, *self.bounds.low.shape))

    def from_env_action(self, action: np.ndarray) -> np.ndarray:
        unit = self.bounds.unscale(action).reshape(-1, len(self.num))
        place = np.floor((unit + 1.0) * (0.5 * self.num_bins)).astype(np.int64)
        return np.clip(place, 0, self.num_bins - 1)

    def squash(self, action: Tensor) -> Tensor:
        return (action.float() + 0.5) * (2.0 / self.num_bins) - 1.0


def race(uniform: np.ndarray) -> np.ndarray:
    """Minus exponentially distributed finishing times, float32."""
    return np.log1p(-uniform).astype(np.float32)


def first_to_finish(log_probs: Tensor, noise: Tensor) -> Tensor:
    """int64 [...]: the first of exponential clocks with rates p, which is class i with probability p_i."""
    return (log_probs.exp() / noise).argmin(-1)


def _categorical_entropy(log_probs: Tensor) -> Tensor:
    return -(log_probs.exp() * log_probs).sum(-1)
