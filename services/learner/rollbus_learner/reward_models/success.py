"""Whether the task is done, as a probability, from one observation.

The last ``last`` frames of each episode, the observation after its last decision among them, are examples of
its outcome; with ``last: 0`` all frames are, and the figure is the chance that an episode which passes here
succeeds. A network is trained by cross-entropy on a part of the episodes. On those held back its logit is
scaled and shifted (Platt, 1999) so that the figure is a probability, at the share of successes that the data
has; there its AUC is measured, too.
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
    from torch import Tensor

    from rollbus_core.datasets.episode import Episode
    from rollbus_wire.spec import EnvSpec
else:
    torch = lazy_import("torch")

FORM = "end"
_NEWTON_STEPS = 50


class Config(RewardModelConfig):
    """Settings of the success classifier."""

    last: int = option(1, "Last frames of each episode that show its outcome; 0: all.", "frames", ge=0)
    holdout: float = option(
        0.3, "Part of the episodes that it does not learn from, but is calibrated with.", gt=0, lt=1
    )


def train(config: Config, episodes: Sequence[Episode], spec: EnvSpec) -> tuple[Any, dict[str, float]]:
    """The calibrated classifier and its figures. Raises `ConfigError` if an outcome is missing or rare."""
    outcomes = [[each for each in episodes if each.success is flag] for flag in (False, True)]
    if min(map(len, outcomes)) < 2:
        raise ConfigError(
            f"a success classifier learns from at least 2 episodes of each outcome; there are "
            f"{len(outcomes[1])} that succeeded and {len(outcomes[0])} that failed, of {len(episodes)}"
        )
    parts = [split(config, each, salt) for salt, each in enumerate(outcomes)]
    learned, held = ([*parts[0][i], *parts[1][i]] for i in (0, 1))
    module = build(config, spec)
    obs, label = _examples(config, learned, spec)
    module.see(obs)

    def loss(index: Tensor) -> Tensor:
        logits = module.logits({key: column[index] for key, column in obs.items()})
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, label[index])

    fit(config, module, len(label), loss)
    obs, label = _examples(config, held, spec)
    with torch.no_grad():
        logits = module.logits(obs).double().numpy()
    truth = label.numpy() > 0.5
    scale, shift = calibration(logits, truth)
    module.scale.fill_(scale)
    module.shift.fill_(shift)
    figures = {"auc": auc(logits, truth), "scale": scale, "shift": shift, "held_back": float(len(held))}
    return module, figures


def build(config: Config, spec: EnvSpec) -> Any:
    """The classifier without its weights."""
    from rollbus_learner.reward_models._networks import Score

    torch.manual_seed(config.seed)
    return Score(spec, config.width)


def _examples(config: Config, episodes: Sequence[Episode], spec: EnvSpec) -> tuple[dict[str, Tensor], Tensor]:
    """Frames [S, ...] per key and the outcome of their episodes, float32 [S]."""
    frames, chosen, label = Frames(episodes, spec, finals=True), [], []
    for begin, length, episode in zip(frames.begin, frames.lengths, episodes):
        first = max(0, length - config.last) if config.last else 0
        chosen.append(np.arange(begin + first, begin + length))
        label.append(np.full(length - first, float(bool(episode.success)), np.float32))
    return frames.at(torch.from_numpy(np.concatenate(chosen))), torch.from_numpy(np.concatenate(label))


def calibration(logits: np.ndarray, truth: np.ndarray) -> tuple[float, float]:
    """(scale > 0, shift) that make ``sigmoid(scale x logits + shift)`` most likely of ``truth`` bool [S].

    Platt's targets (n + 1) / (n + 2) keep them finite where the classes are apart. By Newton's method; a
    scale that would turn the order around is cut to 0.001.
    """
    high, low = (truth.sum() + 1) / (truth.sum() + 2), 1 / ((~truth).sum() + 2)
    target, inputs = np.where(truth, high, low), np.stack([logits, np.ones_like(logits)], -1)
    found = np.array([1.0, 0.0])
    for _ in range(_NEWTON_STEPS):
        chance = _sigmoid(inputs @ found)
        slope = inputs.T @ (chance - target)
        curve = (inputs * (chance * (1 - chance))[:, None]).T @ inputs + 1e-9 * np.eye(2)
        step = np.linalg.solve(curve, slope)
        found = found - step * min(1.0, 2.0 / max(float(np.abs(step).max()), 1e-12))
    return max(float(found[0]), 1e-3), float(found[1])


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * x)))


def auc(scores: np.ndarray, truth: np.ndarray) -> float:
    """The chance that a success has a higher score than a failure; equal ones count half."""
    good, bad = scores[truth][:, None], scores[~truth][None, :]
    return float(((good > bad) + 0.5 * (good == bad)).mean())
