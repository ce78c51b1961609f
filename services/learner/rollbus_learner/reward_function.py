"""A reward of one's own: a function of what was seen and done."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from rollbus_learner.following import after
from rollbus_wire import lookup
from rollbus_wire.errors import ConfigError
from rollbus_wire.own_code import guard

if TYPE_CHECKING:
    from rollbus_learner.algorithm import Batch


class FunctionReward:
    """``module:function`` of columns ``obs/<key>``, ``next_obs/<key>``, ``action`` and the flags, [..., ...].

    Leading dimensions are those of the batch, [T, N] or [B]; columns are numpy arrays; it gives float [...].
    """

    #: It is asked about single decisions only.
    over_several = False

    def __init__(self, name: str, where: str) -> None:
        """``where`` is the setting that named it. Raises `ConfigError` if there is no such function."""
        self.name, self._where, self._function = name, where, lookup.function(name, where)

    def of(self, batch: Batch) -> Tensor:
        """float32 [...], one number per decision. Raises `ConfigError` for another shape."""
        columns = {name: column.cpu().numpy() for name, column in _columns(batch).items()}
        with guard(self.name, f"its call ({self._where})"):
            found = np.asarray(self._function(columns), np.float32)
        wanted = tuple(batch["valid"].shape)
        if found.shape != wanted:
            raise ConfigError(
                f"{self._where}: {self.name} gave {list(found.shape)}, one number per decision is "
                f"{list(wanted)}"
            )
        return torch.from_numpy(found)


def _columns(batch: Batch) -> Mapping[str, Tensor]:
    """What a function is told: before, after, what was done, and how it ended."""
    lead = batch["valid"].shape
    names = ("action", "reward", "num_steps", "terminated", "truncated", "source")
    found = {name: batch[name] for name in names if name in batch}
    for name in [name for name in batch if name.startswith("obs/")]:
        found[name] = batch[name][: lead[0]]
        if f"next_{name}" in batch:
            found[f"next_{name}"] = batch[f"next_{name}"]
        else:
            found[f"next_{name}"] = after(batch[name], partial(batch.__getitem__, f"final_{name}"), batch)
    return found
