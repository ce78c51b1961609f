"""What reward models share: their settings, episodes that are held back, the training loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rollbus_core.config.models import option
from rollbus_core.lazy import lazy_import
from rollbus_learner.labellers._base import ModelConfig

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from rollbus_core.datasets.episode import Episode
else:
    torch = lazy_import("torch")


class RewardModelConfig(ModelConfig):
    """Settings of all reward models."""

    holdout: float = option(0.2, "Part of the episodes that it does not learn from.", ge=0, lt=1)


def split(
    config: RewardModelConfig, episodes: Sequence[Episode], salt: int = 0
) -> tuple[list[Episode], list[Episode]]:
    """(to learn from, held back), by chance; at least one on either side where two are there."""
    order = np.random.default_rng([config.seed, salt]).permutation(len(episodes))
    num = min(max(round(config.holdout * len(episodes)), int(config.holdout > 0)), len(episodes) - 1)
    return [episodes[i] for i in order[num:]], [episodes[i] for i in order[:num]]


def fit(
    config: RewardModelConfig, module: Any, num: int, loss: Callable[[Tensor], Tensor], salt: int = 0
) -> None:
    """``config.steps`` steps of Adam on ``loss(indices below num)``."""
    optimiser = torch.optim.Adam(module.parameters(), config.learning_rate)
    generator = torch.Generator().manual_seed(config.seed * 1000 + salt)
    for _ in range(config.steps):
        optimiser.zero_grad()
        loss(torch.randint(num, (config.batch_size,), generator=generator)).backward()
        optimiser.step()
