"""STEAM (2606.29834): how far the task moves between two frames, learned from demonstrations alone.

A classifier is shown two frames of one episode, t and t + s or reversed, and tells the signed stride s in
bins over [-K, K] without 0; s is drawn from 1..min(K, T - 1 - t). An ensemble, each member with minibatches
of its own, is trained on demonstrations (what an expert or a person did, else what succeeded) and scores all:
frame t against t + K, the expected signed bin divided by half the bins, the least of the members. The last
K frames of an episode have no score. The best ``good`` of each task is labelled good. Where it differs from
the paper: small networks from scratch; K is cut to what the shortest demonstration allows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rollbus_core.columns import SOURCES
from rollbus_core.config.models import option
from rollbus_core.lazy import lazy_import
from rollbus_learner.labellers._base import Frames, LabellerConfig
from rollbus_wire.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from rollbus_core.datasets.episode import Episode
    from rollbus_wire.spec import EnvSpec
else:
    torch = lazy_import("torch")

_SHOWN = [SOURCES.index("expert"), SOURCES.index("human")]


class Config(LabellerConfig):
    """Settings of STEAM's labels."""

    stride: int = option(32, "Largest stride, K.", "decisions", ge=1)
    bins: int = option(32, "Bins over [-K, K]; half of them are at most K.", ge=2, multiple_of=2)
    members: int = option(3, "Members of the ensemble.", ge=1)
    smoothing: float = option(0.05, "Part of the target that is spread over all bins.", ge=0, lt=1)


def bin_of(stride: np.ndarray, largest: int, bins: int) -> np.ndarray:
    """int64: the bin of signed ``stride``, none of which is 0; bins below half go backwards."""
    half = bins // 2
    place = (np.abs(stride) - 1) * half // largest
    return np.where(stride > 0, half + place, half - 1 - place)


def expected(probabilities: Tensor) -> Tensor:
    """[...]: expected signed bin over half the bins, in [-1, 1], of ``probabilities`` [..., bins]."""
    half = probabilities.shape[-1] // 2
    up = torch.arange(1, half + 1, device=probabilities.device, dtype=probabilities.dtype)
    return probabilities @ (torch.cat([-up.flip(0), up]) / half)


def demonstrations(episodes: Sequence[Episode]) -> list[Episode]:
    """Those of an expert or a person; where there are none those that succeeded."""
    shown = [episode for episode in episodes if np.isin(episode.source, _SHOWN).all()]
    return shown or [episode for episode in episodes if episode.success]


def sizes(config: Config, episodes: Sequence[Episode]) -> tuple[int, int]:
    """(K, bins): no more than the shortest demonstration allows. Raises `ConfigError` without any."""
    shown = [episode for episode in demonstrations(episodes) if len(episode) > 1]
    if not shown:
        raise ConfigError(
            "steam learns from demonstrations: no episode is an expert's, a person's or succeeded"
        )
    largest = min(config.stride, min(len(episode) for episode in shown) - 1)
    return largest, 2 * min(config.bins // 2, largest)


def train(config: Config, episodes: Sequence[Episode], spec: EnvSpec) -> Any:
    """The ensemble."""
    shown = [episode for episode in demonstrations(episodes) if len(episode) > 1]
    largest, bins = sizes(config, episodes)
    frames, model = Frames(shown, spec), build(config, spec, bins)
    lengths = np.array([len(episode) for episode in shown])
    # A frame with a later one in its episode, and how many there are.
    anchors = np.concatenate([begin + np.arange(n - 1) for begin, n in zip(frames.begin, lengths)])
    room = np.concatenate([np.minimum(largest, n - 1 - np.arange(n - 1)) for n in lengths])
    for number, member in enumerate(model):
        member["encoder"].see(frames.obs)
        generator = np.random.default_rng([config.seed, number])
        optimiser = torch.optim.Adam(member.parameters(), config.learning_rate)
        for _ in range(config.steps):
            chosen = generator.integers(0, len(anchors), config.batch_size)
            stride = 1 + (generator.random(config.batch_size) * room[chosen]).astype(np.int64)
            back = generator.random(config.batch_size) < 0.5
            first, last = anchors[chosen], anchors[chosen] + stride
            one, other = np.where(back, last, first), np.where(back, first, last)
            target = torch.from_numpy(bin_of(np.where(back, -stride, stride), largest, bins))
            logits = _logits(member, frames, torch.from_numpy(one), torch.from_numpy(other))
            loss = torch.nn.functional.cross_entropy(logits, target, label_smoothing=config.smoothing)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return model


def build(config: Config, spec: EnvSpec, bins: int) -> Any:
    """The ensemble without its weights."""
    from rollbus_learner.labellers._encoder import Encoder

    members = []
    for number in range(config.members):
        torch.manual_seed(config.seed * 1000 + number)
        head = torch.nn.Sequential(
            torch.nn.Linear(2 * config.width, config.width),
            torch.nn.ReLU(),
            torch.nn.Linear(config.width, bins),
        )
        members.append(torch.nn.ModuleDict({"encoder": Encoder(spec, config.width), "head": head}))
    return torch.nn.ModuleList(members)


def rebuild(config: Config, tensors: Mapping[str, Tensor], spec: EnvSpec) -> Any:
    """The value model with the weights ``tensors``."""
    model = build(config, spec, len(tensors["0.head.2.bias"]))
    model.load_state_dict(dict(tensors))
    return model


def score(config: Config, model: Any, episodes: Sequence[Episode], spec: EnvSpec) -> list[np.ndarray]:
    """Progress in [-1, 1] over K decisions, [T] per episode; NaN in the last K."""
    largest, _ = sizes(config, episodes)
    frames, found = Frames(episodes, spec), []
    for begin, episode in zip(frames.begin, episodes):
        values = np.full(len(episode), np.nan)
        if len(episode) > largest:
            one = torch.arange(begin, begin + len(episode) - largest)
            with torch.no_grad():
                each = [expected(_logits(m, frames, one, one + largest).softmax(-1)) for m in model]
            values[: len(one)] = torch.stack(each).amin(0).numpy()
        found.append(values)
    return found


def _logits(member: Any, frames: Frames, one: Tensor, other: Tensor) -> Tensor:
    seen = member["encoder"](frames.at(torch.cat([one, other])))
    return member["head"](torch.cat(seen.chunk(2), -1))  # type: ignore[no-any-return]
