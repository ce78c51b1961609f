"""From samples of rehearsals to costs per turn, tick, row and episode. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rollbus_core.plan.costs import ActorCosts, HubCosts
from rollbus_launch.planning.rehearsal import Sample, Tally

#: Fewer ticks without ends say nothing.
MIN_PLAIN_TICKS = 100


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
    base, rest = _tallies(samples, known is None)
    tick_s, row_s = fit([[t.ticks, t.rows] for t in base], [t.hub_s - _ended_s(t, known) for t in base])
    left = [t.hub_s - t.ticks * tick_s - t.rows * row_s for t in rest]
    ending_s, episode_s = _ends(rest, left) if known is None else (known.ending_s, known.episode_s)
    return HubCosts(tick_s=tick_s, row_s=row_s, ending_s=ending_s, episode_s=episode_s)


def actor_costs(samples: Sequence[Sample], known: ActorCosts | None = None) -> ActorCosts:
    """Of an actor, without new weights."""
    base, rest = _tallies(samples, known is None)
    turn_s, tick_s, row_s = fit(
        [[t.turns, t.ticks, t.rows] for t in base], [t.actor_s - _ended_s(t, known) for t in base]
    )
    left = [t.actor_s - t.turns * turn_s - t.ticks * tick_s - t.rows * row_s for t in rest]
    ending_s, episode_s = _ends(rest, left) if known is None else (known.ending_s, known.episode_s)
    record_s = sum(s.record_s for s in samples) / max(1, sum(s.ticks for s in samples))
    return ActorCosts(
        turn_s=turn_s, tick_s=tick_s, row_s=row_s, ending_s=ending_s, episode_s=episode_s, record_s=record_s
    )


def ending_share(samples: Sequence[Sample]) -> float:
    """Ticks with ends as a share of what independent rows of the same mean length would have."""
    ticks, rows = sum(s.ticks for s in samples), sum(s.rows for s in samples)
    episodes = sum(s.episodes for s in samples)
    if not episodes:
        return 1.0
    independent = 1.0 - (1.0 - min(1.0, episodes / rows)) ** (rows / ticks)
    return min(1.0, sum(s.ended.ticks for s in samples) / ticks / independent)


def _tallies(samples: Sequence[Sample], apart: bool) -> tuple[list[Tally], list[Tally]]:
    """Turns without ends, which show the other costs, and those with ends.

    Where ends are in (almost) every turn, or cannot be told apart, all turns show the other costs.
    """
    plain = [s.plain for s in samples if s.plain.ticks and s.plain.turns]
    ended = [s.ended for s in samples if s.ended.ticks and s.ended.turns]
    if apart and sum(t.ticks for t in plain) > MIN_PLAIN_TICKS:
        return plain, ended
    return [_sum(s.plain, s.ended) for s in samples], []


def _sum(one: Tally, other: Tally) -> Tally:
    return Tally(**{name: value + getattr(other, name) for name, value in vars(one).items()})


def _ends(tallies: Sequence[Tally], seconds: Sequence[float]) -> tuple[float, float]:
    """Per tick with ends, and per episode."""
    if not tallies:
        return 0.0, 0.0
    ending_s, episode_s = fit([[t.ending, t.episodes] for t in tallies], np.maximum(seconds, 1e-9).tolist())
    return float(ending_s), float(episode_s)


def _ended_s(tally: Tally, known: HubCosts | ActorCosts | None) -> float:
    if known is None:
        return 0.0
    return tally.ending * known.ending_s + tally.episodes * known.episode_s


def ratio(numerators: Sequence[float], counts: Sequence[float]) -> float:
    """Sum over sum; 0 without counts."""
    total = sum(counts)
    return float(sum(numerators) / total) if total else 0.0
