"""One episode of a dataset, as arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]


@dataclass
class Episode:
    """T decisions in order. A frame of a dataset is one decision."""

    #: Observation each decision was taken on, [T, ...] per key.
    obs: Arrays
    #: What was executed, in the environment's units, [T, ...].
    action: np.ndarray
    #: float32 [T], over all environment steps of the decision.
    reward: np.ndarray
    #: uint8 [T], index into `rollbus_core.columns.SOURCES`.
    source: np.ndarray
    #: How it ended; neither: it is not known, so nothing may be bootstrapped from its end.
    terminated: bool = False
    truncated: bool = False
    #: Observation after the last decision, [...] per key, where it is known.
    final_obs: Arrays | None = None
    #: None where there is no signal.
    success: bool | None = None
    #: Seed of the environment's reset, -1: not known.
    seed: int = -1
    #: What the environment's reset got besides; None: nothing.
    options: dict[str, Any] | None = None
    #: What was asked for, in words.
    task: str = ""
    #: int8 [T]: 1 good, 0 poor, -1 not known; None: nobody labelled it.
    label: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.reward)

    @property
    def total_reward(self) -> float:
        """Undiscounted return."""
        return float(self.reward.sum(dtype=np.float64))
