"""Deterministic mode: where the environments stand after an applied batch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rollbus_core.running_episodes import RunningEpisodes
from rollbus_learner.audit import cell_columns
from rollbus_learner.slab_views import Slabs
from rollbus_wire.messages import Batch


def follow(
    episodes: RunningEpisodes, slabs: Slabs, batch: Batch, env_action: Callable[[np.ndarray], np.ndarray]
) -> None:
    """Enter the chunks of ``batch``; ``env_action`` gives what environments execute for stored actions."""
    for item in batch.chunks:
        columns = cell_columns(slabs, item)
        if columns is not None:
            episodes.applied(columns, env_action(columns["action"]), item["lengths"])
