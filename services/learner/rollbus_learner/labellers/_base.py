"""What labellers share: their settings, the frames of episodes, and from scores to labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from pydantic import BaseModel, ConfigDict

from rollbus_core.columns import SOURCES
from rollbus_core.config.models import option
from rollbus_core.datasets.labels import GOOD, POOR, UNKNOWN
from rollbus_core.lazy import lazy_import
from rollbus_wire.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from rollbus_core.datasets.episode import Episode
    from rollbus_wire.spec import EnvSpec
else:
    torch = lazy_import("torch")

_HUMAN = SOURCES.index("human")


class ModelConfig(BaseModel):
    """Settings of all models of observations."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    steps: int = option(600, "Gradient steps of the model.", ge=1)
    batch_size: int = option(256, "Decisions of one of them.", ge=1)
    learning_rate: float = option(1e-3, "Step size.", gt=0, le=1)
    width: int = option(64, "Width of the network.", ge=8)
    seed: int = option(1, "Seed of weights and draws.", ge=0)


class LabellerConfig(ModelConfig):
    """Settings of all labellers."""

    good: float = option(0.3, "Part of the decisions of each task that are labelled good.", gt=0, lt=1)


class Frames:
    """All observations of ``episodes`` as tensors; with ``finals`` those after the last decisions, too."""

    def __init__(self, episodes: Sequence[Episode], spec: EnvSpec, *, finals: bool = False) -> None:
        self.spec = spec
        #: First frame of each episode, and how many it has.
        self.begin: list[int] = []
        self.lengths: list[int] = []
        parts: dict[str, list[np.ndarray]] = {key: [] for key in spec.observation}
        num = 0
        for episode in episodes:
            end = episode.final_obs if finals else None
            self.begin.append(num)
            self.lengths.append(len(episode) + (end is not None))
            num += self.lengths[-1]
            for key, frames in episode.obs.items():
                parts[key] += [frames] if end is None else [frames, end[key][None]]
        self.obs = {key: torch.from_numpy(np.concatenate(part)) for key, part in parts.items()}
        self.num = num

    def at(self, index: Tensor) -> dict[str, Tensor]:
        """Observations [B, ...] of the frames ``index``."""
        return {key: column[index] for key, column in self.obs.items()}


def batches(config: ModelConfig, num: int, salt: int = 0) -> Iterator[Tensor]:
    """Random indices below ``num``, one tensor per gradient step."""
    generator = torch.Generator().manual_seed(config.seed * 1000 + salt)
    for _ in range(config.steps):
        yield torch.randint(num, (config.batch_size,), generator=generator)


def labels_of(scores: Sequence[np.ndarray], episodes: Sequence[Episode], good: float) -> list[np.ndarray]:
    """int8 [T] per episode: the best part ``good`` of each task, and all that a person did, is good.

    What has no score (NaN) is not known. Raises `ConfigError` if a task has only one label.
    """
    labels = [np.full(len(episode), UNKNOWN, np.int8) for episode in episodes]
    for task in sorted({episode.task for episode in episodes}):
        mine = [i for i, episode in enumerate(episodes) if episode.task == task]
        known = np.concatenate([scores[i][np.isfinite(scores[i])] for i in mine])
        if not len(known):
            raise ConfigError(f"no decision of task {task!r} has a score: its episodes are too short")
        least = np.quantile(known, 1.0 - good)
        for i in mine:
            there = np.isfinite(scores[i])
            labels[i][there] = np.where(scores[i][there] > least, GOOD, POOR)
            labels[i][episodes[i].source == _HUMAN] = GOOD
        found = np.concatenate([labels[i] for i in mine])
        if not {GOOD, POOR} <= set(found.tolist()):
            raise ConfigError(
                f"every decision of task {task!r} got the same label (scores {known.min():.3g} to "
                f"{known.max():.3g}): the value model tells nothing apart; train it longer"
            )
    return labels
