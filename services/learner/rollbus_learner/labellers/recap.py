"""RECAP's advantages (2511.14759): a value model of the whole data set says which decisions were good.

Reward -1 per decision; the last one of an episode 0 if it succeeded, ``-failure_cost`` if not. Returns G are
undiscounted and, per task, normalised to [-1, 0]. A distribution over 201 atoms is trained by two-hot
cross-entropy. ``A_t = (G_t - G_{t+N}) / (max - min) + V(o_{t+N}) - V(o_t)``; past the end there is no
bootstrap: the return itself stands there. The best ``good`` of each task is labelled good. Where it differs
from the paper: the value network is a small one over the observations, without language; an episode whose
success is not known counts as a failure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rollbus_core.config.models import option
from rollbus_core.lazy import lazy_import
from rollbus_learner.labellers._base import Frames, LabellerConfig, batches

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from rollbus_core.datasets.episode import Episode
    from rollbus_policies._value_heads import TwoHot
    from rollbus_wire.spec import EnvSpec
else:
    torch = lazy_import("torch")


class Config(LabellerConfig):
    """Settings of RECAP's labels."""

    horizon: int = option(10, "Decisions until the value is looked at again, N.", "decisions", ge=1)
    atoms: int = option(201, "Atoms of the value's distribution.", ge=2)
    failure_cost: float = option(300.0, "What the end of an episode that failed costs.", gt=0)


def rewards(episode: Episode, config: Config) -> np.ndarray:
    """float64 [T]."""
    reward = np.full(len(episode), -1.0)
    reward[-1] = 0.0 if episode.success else -config.failure_cost
    return reward


def returns(episodes: Sequence[Episode], config: Config) -> list[np.ndarray]:
    """Normalised returns to go in [-1, 0], [T] per episode; range over the episodes of the same task."""
    raw = [np.cumsum(rewards(episode, config)[::-1])[::-1] for episode in episodes]
    found = []
    for episode, mine in zip(episodes, raw):
        same = [other for other, each in zip(raw, episodes) if each.task == episode.task]
        low, high = min(x.min() for x in same), max(x.max() for x in same)
        found.append((mine - high) / max(high - low, 1e-9))
    return found


def advantages(returned: np.ndarray, value: np.ndarray, horizon: int) -> np.ndarray:
    """A [T] from normalised ``returned`` [T] and ``value`` [T]."""
    num = len(returned)
    later = np.minimum(np.arange(num) + horizon, num - 1)
    inside = np.arange(num) + horizon < num
    target = np.where(inside, returned - returned[later] + value[later], returned)
    return target - value


def train(config: Config, episodes: Sequence[Episode], spec: EnvSpec) -> Any:
    """The value model."""
    torch.manual_seed(config.seed)
    frames, model = Frames(episodes, spec), build(config, spec)
    model["encoder"].see(frames.obs)
    head = value_head(config)
    target = torch.from_numpy(np.concatenate(returns(episodes, config)).astype(np.float32))
    optimiser = torch.optim.Adam(model.parameters(), config.learning_rate)
    for index in batches(config, frames.num):
        loss = head.loss(model["value"](model["encoder"](frames.at(index))), target[index]).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model


def build(config: Config, spec: EnvSpec) -> Any:
    """The value model without its weights."""
    from rollbus_learner.labellers._encoder import Encoder
    from rollbus_policies._critics import ValueNet

    value = ValueNet(config.width, [], "relu", "orthogonal", value_head(config))
    return torch.nn.ModuleDict({"encoder": Encoder(spec, config.width), "value": value})


def value_head(config: Config) -> TwoHot:
    """Atoms from the worst return to the best."""
    from rollbus_policies._networks import OUTPUT_GAIN
    from rollbus_policies._value_heads import TwoHot

    return TwoHot(torch.linspace(-1.0, 0.0, config.atoms), OUTPUT_GAIN)


def rebuild(config: Config, tensors: Mapping[str, Tensor], spec: EnvSpec) -> Any:
    """The value model with the weights ``tensors``."""
    model = build(config, spec)
    model.load_state_dict(dict(tensors))
    return model


def score(config: Config, model: Any, episodes: Sequence[Episode], spec: EnvSpec) -> list[np.ndarray]:
    """Advantages [T] per episode."""
    frames = Frames(episodes, spec)
    with torch.no_grad():
        raw = model["value"](model["encoder"](frames.obs))
        value = value_head(config)(raw).numpy().astype(np.float64)
    parts = np.split(value, frames.begin[1:])
    found = returns(episodes, config)
    return [advantages(g, v, config.horizon) for g, v in zip(found, parts)]
