"""How much of the task is done, 0 to 1, from one observation; learned from demonstrations that succeeded.

Frame t of a demonstration of T decisions has the target t / T, the observation after the last one 1. An
ensemble, each member with minibatches of its own, is trained on the squared error; the least of its members
counts, so that what no demonstration shows is not taken for progress where they disagree. As a potential
(Ng, Harada and Russell, 1999) it changes no best policy, however wrong it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rollbus_core.config.models import option
from rollbus_core.lazy import lazy_import
from rollbus_learner.labellers._base import Frames
from rollbus_learner.reward_models._base import RewardModelConfig, fit, split
from rollbus_wire.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from rollbus_core.datasets.episode import Episode
    from rollbus_wire.spec import EnvSpec
else:
    torch = lazy_import("torch")

FORM = "shaping"


class Config(RewardModelConfig):
    """Settings of the progress model."""

    members: int = option(3, "Members of the ensemble.", ge=1)


def targets(frames: Frames) -> np.ndarray:
    """float32 [frames]: the part of each episode that lies before the frame."""
    parts = [np.linspace(0.0, 1.0, length, dtype=np.float32) for length in frames.lengths]
    return np.concatenate(parts)


def train(config: Config, episodes: Sequence[Episode], spec: EnvSpec) -> tuple[Any, dict[str, float]]:
    """The ensemble, and its mean error on demonstrations held back. Raises `ConfigError` without any."""
    shown = [each for each in episodes if each.success and each.final_obs is not None]
    if not shown:
        raise ConfigError(
            "a progress model learns from episodes that succeeded and whose last observation is known; there "
            "is none (rollbus collect --successful-only makes some)"
        )
    learned, held = split(config, shown)
    frames, module = Frames(learned, spec, finals=True), build(config, spec)
    target = torch.from_numpy(targets(frames))
    for number, member in enumerate(module.members):
        member.see(frames.obs)

        def loss(index: Any, member: Any = member) -> Any:
            return (member(frames.at(index)) - target[index]).square().mean()

        fit(config, member, frames.num, loss, salt=number)
    figures = {"demonstrations": float(len(learned))}
    if held:
        unseen = Frames(held, spec, finals=True)
        with torch.no_grad():
            error = (module(unseen.obs) - torch.from_numpy(targets(unseen))).abs().mean()
        figures["error"] = float(error)
    return module, figures


def build(config: Config, spec: EnvSpec) -> Any:
    """The ensemble without its weights."""
    from rollbus_learner.reward_models._networks import Least

    return Least(spec, config.width, config.members, config.seed)
