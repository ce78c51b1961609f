"""From samples of rehearsals to costs per turn, tick, row and episode. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rollbus_core.plan.costs import ActorCosts, HubCosts
from rollbus_launch.plan_rehearsal import Sample


def fit(counts: Sequence[Sequence[float]], seconds: Sequence[float]) -> np.ndarray:
    """Costs >= 0 with ``counts`` [S, K] @ costs [K] = ``seconds`` [S], by least squares of relative errors.

    A cost that would be negative is 0 and the others are fitted again (the K are few).
    """
    scale = 1.0 / np.maximum(np.asarray(seconds, float), 1e-9)
    matrix, target = np.asarray(counts, float) * scale[:, None], np.asarray(seconds, float) * scale
    active = list(range(matrix.shape[1]))
    costs = np.zeros(matrix.shape[1])
    while active:
        found, *_ = np.linalg.lstsq(matrix[:, active], target, rcond=1e-9)
        if (found >= 0).all():
            costs[active] = found
            return costs
        del active[int(found.argmin())]
    return costs


def hub_costs(samples: Sequence[Sample], known: HubCosts | None = None) -> HubCosts:
    """Of a hub; the costs of ends from ``known`` if it is given."""
    counts = [[s.ticks, s.rows] + ([] if known else [s.ending, s.episodes]) for s in samples]
    seconds = [s.seconds["hub"] - _ended_s(s, known) for s in samples]
    found = [*fit(counts, seconds), *((known.ending_s, known.episode_s) if known else ())]
    return HubCosts(tick_s=found[0], row_s=found[1], ending_s=found[2], episode_s=found[3])


def actor_costs(samples: Sequence[Sample], known: ActorCosts | None = None) -> ActorCosts:
    """Of an actor, without new weights."""
    counts = [
        [s.turns["actor"], s.ticks, s.rows] + ([] if known else [s.ending, s.episodes]) for s in samples
    ]
    seconds = [s.seconds["actor"] - s.apply_s - _ended_s(s, known) for s in samples]
    found = [*fit(counts, seconds), *((known.ending_s, known.episode_s) if known else ())]
    record_s = sum(s.record_s for s in samples) / max(1, sum(s.ticks for s in samples))
    return ActorCosts(
        turn_s=found[0], tick_s=found[1], row_s=found[2], ending_s=found[3], episode_s=found[4],
        record_s=record_s,
    )  # fmt: skip


def ending_share(samples: Sequence[Sample]) -> float:
    """Ticks with ends as a share of what independent rows of the same mean length would have."""
    ticks, rows = sum(s.ticks for s in samples), sum(s.rows for s in samples)
    episodes = sum(s.episodes for s in samples)
    if not episodes:
        return 1.0
    independent = 1.0 - (1.0 - min(1.0, episodes / rows)) ** (rows / ticks)
    return min(1.0, sum(s.ending for s in samples) / ticks / independent)


def _ended_s(sample: Sample, known: HubCosts | ActorCosts | None) -> float:
    return sample.ending * known.ending_s + sample.episodes * known.episode_s if known else 0.0


def ratio(numerators: Sequence[float], counts: Sequence[float]) -> float:
    """Sum over sum; 0 without counts."""
    total = sum(counts)
    return float(sum(numerators) / total) if total else 0.0
