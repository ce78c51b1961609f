"""A poor policy for the toy sparse_reach: a third of its moves are the expert's, the others go anywhere."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rollbus_core.rng import uniform

SKILL, LIMIT, STRIDE = 0.34, 2.0, 0.05


def act(obs: Mapping[str, np.ndarray]) -> np.ndarray:
    """Actions [B, A]; what a row does is a function of what it sees."""
    seen = np.ascontiguousarray(obs["obs"])
    place, goal = np.split(seen, 2, axis=1)
    seeds = np.frombuffer(seen[:, :2].tobytes(), np.uint64)
    random = uniform(seeds, 1 + place.shape[1])
    best = np.clip((goal - place) / STRIDE, -LIMIT, LIMIT)
    anywhere = LIMIT * (2.0 * random[:, 1:] - 1.0)
    return np.where(random[:, :1] < SKILL, best, anywhere).astype(np.float32)
