"""Rewards beside the environment's, each with a weight: functions, learned models, what came late.

They are asked once per update for all decisions, of data sets as of actors. What is logged and evaluated as
return stays the environment's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from rollbus_core.config.models import RewardConfig
from rollbus_core.feed import Feed
from rollbus_learner.algorithm import of_stream
from rollbus_learner.reward_function import FunctionReward
from rollbus_learner.reward_model import ModelReward
from rollbus_wire.errors import ConfigError

if TYPE_CHECKING:
    from rollbus_learner.algorithm import Batch
    from rollbus_wire.spec import EnvSpec

KEY = "learner.rewards"


class Source(Protocol):
    """Where a reward comes from."""

    @property
    def over_several(self) -> bool:
        """Whether it can be asked about a stretch of several decisions (n-step transitions)."""

    def of(self, batch: Batch) -> Tensor:
        """float32 [...], one number per decision of ``batch``."""


class Rewards:
    """All sources of ``configs``; ``feeds`` are those that the learner reads, the main one first."""

    def __init__(
        self, configs: Sequence[RewardConfig], sources: Sequence[Source], feeds: Mapping[str, Feed]
    ) -> None:
        """Raises `ConfigError` where a source cannot say what the feeds ask."""
        self._all = list(zip(configs, sources))
        #: Streams of single decisions and of whole chunks; sequences of rows have no final observations.
        self._streams = [name for name, feed in feeds.items() if feed.unit != "sequence"]
        self._main = next(iter(feeds))
        steps = max(feed.n_step for feed in feeds.values())
        for config, source in self._all:
            if steps > 1 and not source.over_several:
                raise ConfigError(
                    f"{KEY}: {config.label} gives rewards of single decisions, but a transition has "
                    f"{steps}; set algorithm.n_step: 1 (only form shaping adds up over several)"
                )

    def add(self, batch: Batch) -> dict[str, float]:
        """Add to rewards in place, at the first step of each decision; means over the main stream.

        Raises `ConfigError` if a source gives a number that is not finite.
        """
        metrics = {}
        for stream in self._streams:
            columns = batch if stream == self._main else of_stream(batch, stream)
            if not columns:
                continue
            for config, source in self._all:
                mean = _add(columns, config, source)
                if stream == self._main:
                    metrics[f"reward_{config.label}"] = mean
        return metrics


def _add(columns: Batch, config: RewardConfig, source: Source) -> float:
    valid, reward = columns["valid"], columns.get("n_step_reward", columns["reward"])
    given = torch.where(valid, source.of(columns).to(reward.device), 0.0)
    if not bool(torch.isfinite(given).all()):
        raise ConfigError(f"{KEY}: {config.source} gave a number that is not finite")
    reward[..., 0] += config.weight * given
    return float(given.sum()) / max(1, int(valid.sum()))


class LateReward:
    """What annotators attached as ``column``; 0 in data sets, which nobody annotates."""

    over_several = False

    def __init__(self, column: str) -> None:
        self._column = f"late/{column}"

    def of(self, batch: Batch) -> Tensor:
        """float32 [...]."""
        found = batch.get(self._column)
        return torch.zeros(batch["valid"].shape) if found is None else found


def source_of(
    config: RewardConfig, spec: EnvSpec, gamma: float | None, device: Any, where: str = KEY
) -> Source:
    """What ``config`` names. Raises `ConfigError`."""
    if config.kind == "late":
        return LateReward(config.label)
    if config.kind == "function":
        return FunctionReward(config.source, where)
    return ModelReward(
        Path(config.source), spec, form=config.form, gamma=gamma, device=device, where=where
    )  # fmt: skip


def build(
    configs: Sequence[RewardConfig],
    feeds: Mapping[str, Feed],
    spec: EnvSpec,
    gamma: float | None,
    device: Any,
) -> Rewards | None:
    """The rewards of a recipe, None where it has none. Raises `ConfigError`."""
    if not configs:
        return None
    return Rewards(configs, [source_of(config, spec, gamma, device) for config in configs], feeds)
