"""Reward models: learned from data sets, told to a training by `learner.rewards`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollbus_core import model_folders
from rollbus_core.model_folders import REWARD
from rollbus_launch.label import arrays, read_episodes
from rollbus_wire import lookup
from rollbus_wire.errors import ConfigError

MODELS = "rollbus_learner.reward_models"


def train_reward(data: Sequence[Path], by: str, config: Any, out: Path) -> dict[str, Any]:
    """Train a reward model of kind ``by`` on data sets of one environment and write a new folder; its card.

    Raises `ConfigError` if there is nothing to learn from, or the data sets observe different things.
    """
    model_folders.refuse_existing(out)
    found = [read_episodes(each) for each in data]
    specs = [dataset.spec for dataset, _ in found]
    spec = specs[0]
    assert spec is not None
    for folder, other in zip(data, specs):
        if other is None or other.observation != spec.observation:
            raise ConfigError(f"{folder} and {data[0]} observe different things; learn from one environment")
    episodes = [episode for _, each in found for episode in each]
    module, figures = lookup.find(MODELS, by).train(config, episodes, spec)
    card = {
        "by": by, "settings": config.model_dump(mode="json"), "spec": spec.to_data(),
        "datasets": [dataset.content() for dataset, _ in found], "episodes": len(episodes),
        "figures": figures,
    }  # fmt: skip
    return model_folders.write(out, REWARD, arrays(module), card)
