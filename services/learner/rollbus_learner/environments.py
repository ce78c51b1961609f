"""Deterministic mode: where the environments stand after an applied batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollbus_core.running_episodes import RunningEpisodes
from rollbus_learner.audit import cell_columns
from rollbus_learner.slab_views import Slabs
from rollbus_wire.messages import Batch


def follow(episodes: RunningEpisodes | None, slabs: Slabs, batch: Batch, policy: Any) -> None:
    """Enter the chunks of ``batch`` as ``policy`` has environments execute them; None: nobody needs it."""
    for item in batch.chunks if episodes is not None else ():
        columns = cell_columns(slabs, item)
        if columns is not None and episodes is not None:
            episodes.applied(columns, executed(policy, columns["action"]), item["lengths"])


def executed(policy: Any, action: np.ndarray) -> np.ndarray:
    """What environments execute of stored ``action`` [T, N, ...]: [T, N, k, ...]."""
    lead = action.shape[:2]
    found = policy.env_action(action.reshape(-1, *action.shape[2:]))
    several = found if policy.spec.chunk > 1 else found[:, None]
    return several.reshape(*lead, *several.shape[1:])
