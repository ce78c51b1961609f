"""A reward of one's own: a function of what was seen and done, added with a weight to the environment's.

It is asked once per update for all decisions of actors' chunks. What is logged and evaluated stays raw.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from rollbus_wire import lookup
from rollbus_wire.errors import ConfigError

if TYPE_CHECKING:
    from rollbus_learner.algorithm import Batch

_KEY = "learner.reward_function"


class RewardSource:
    """``module:function`` of columns ``obs/<key>``, ``next_obs/<key>``, ``action`` and the flags, [..., ...].

    Leading dimensions are those of the batch, [T, N] or [B]; it gives float [...].
    """

    def __init__(self, name: str, weight: float) -> None:
        """Raises `ConfigError` if there is no such function."""
        self.name, self.weight, self._function = name, weight, lookup.function(name, _KEY)

    def add(self, batch: Batch) -> dict[str, float]:
        """Add to ``reward`` in place, at the first step of each decision; the mean over valid decisions."""
        valid = batch["valid"]
        columns = {name: column.cpu().numpy() for name, column in _columns(batch).items()}
        found = np.asarray(self._function(columns), np.float32)
        if found.shape != tuple(valid.shape):
            raise ConfigError(
                f"{_KEY}: {self.name} gave {list(found.shape)}, one number per decision is "
                f"{list(valid.shape)}"
            )
        given = torch.from_numpy(found)
        if not bool(torch.isfinite(given[valid]).all()):
            raise ConfigError(f"{_KEY}: {self.name} gave a number that is not finite")
        given = torch.where(valid, given, torch.zeros(()))
        batch["reward"][..., 0] += self.weight * given.to(batch["reward"].device)
        return {"own_reward": float(given.sum()) / max(1, int(valid.sum()))}


def _columns(batch: Batch) -> Mapping[str, torch.Tensor]:
    """What a function is told: before, after, what was done, and how it ended."""
    lead = batch["valid"].shape
    names = ("action", "reward", "num_steps", "terminated", "truncated", "source")
    found = {name: batch[name] for name in names if name in batch}
    for name in [name for name in batch if name.startswith("obs/")]:
        key = name.removeprefix("obs/")
        found[name] = batch[name][: lead[0]]
        if f"next_obs/{key}" in batch:
            found[f"next_obs/{key}"] = batch[f"next_obs/{key}"]
            continue
        following, slot = batch[name][1:].clone(), batch["final_slot"].long()
        there = slot >= 0
        if bool(there.any()):
            following[there] = batch[f"final_obs/{key}"][slot[there]]
        found[f"next_obs/{key}"] = following
    return found
