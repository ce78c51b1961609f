"""Costs fitted to what processes of a real run used: cold caches, waking up, empty turns, neighbours.

Polls that are timed one by one tell how costs grow with rows, slices and episodes, but not what a process
adds that runs beside others. Only costs are fitted, never the rate: it stays a prediction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

from rollbus_core.feed import Feed
from rollbus_core.plan.costs import ActorCosts, HubCosts, StageCosts
from rollbus_core.plan.layouts import Layout
from rollbus_core.plan.model import IO, Prediction, predict

#: Costs change who waits for whom, and with it the number of empty turns: so often they are fitted.
ROUNDS = 4
#: No cost changes by more than this in one round; beyond it the run was disturbed.
MOST = 3.0
MAX_EVENTS = 20_000

_Part = TypeVar("_Part", HubCosts, ActorCosts)


@dataclass(frozen=True)
class Seen:
    """What a real run used per environment step; seconds."""

    #: Process -> CPU time of its main thread.
    process_s: dict[str, float]
    #: CPU time of all other threads of all processes.
    io_s: float
    #: Time in which the learner did not wait for a batch.
    learner_s: float
    episode_steps: float
    steps_per_s: float = 0.0
    #: How long it was looked at, and the cores that other programs used meanwhile.
    seconds: float = 0.0
    others_cores: float = 0.0


def mean_of(runs: Sequence[Seen]) -> Seen:
    """Of runs of one layout, each with equal weight."""
    first, num = runs[0], len(runs)
    numbers = {
        f.name: sum(getattr(run, f.name) for run in runs) / num for f in fields(Seen) if f.name != "process_s"
    }
    process_s = {name: sum(run.process_s[name] for run in runs) / num for name in first.process_s}
    return Seen(process_s=process_s, **numbers)


def calibrated(
    costs: StageCosts, layout: Layout, feed: Feed, seen: Seen, *, max_batch: int = 1024, share: float = 1.0
) -> StageCosts:
    """``costs`` with which ``layout`` uses per step what was ``seen``; ``share``: its part of their batch."""
    for _ in range(ROUNDS):
        said = said_of(layout, costs, feed, seen, max_batch=max_batch, share=share)
        costs = _nearer(costs, layout, said, seen)
    return costs


def said_of(
    layout: Layout, costs: StageCosts, feed: Feed, seen: Seen, *, max_batch: int = 1024, share: float = 1.0,
    max_events: int = MAX_EVENTS,
) -> Prediction:  # fmt: skip
    """What the model says of the run in which ``seen`` was seen."""
    part = {"update_s": costs.update_s * share, "learner_s": costs.learner_s * share}
    return predict(
        layout, costs.model_copy(update=part), feed, episode_steps=seen.episode_steps, max_batch=max_batch,
        max_events=max_events,
    )  # fmt: skip


def _nearer(costs: StageCosts, layout: Layout, said: Prediction, seen: Seen) -> StageCosts:
    """One round: every cost times what was seen over what was said."""
    per_step = {user: cores / said.steps_per_s for user, cores in said.process_cores.items()}
    learner = _factor(seen.learner_s, said.busy["learner"] / said.steps_per_s)
    changed: dict[str, object] = {
        "message_s": costs.message_s * _factor(seen.io_s, per_step.get(IO, 0.0)),
        "update_s": costs.update_s * learner, "learner_s": costs.learner_s * learner,
    }  # fmt: skip
    for role, other in (("hub", "actor"), ("actor", "hub")):
        for kind in ("fused", "apart"):
            # Of several hubs one may share its process with the actor and the others not.
            names = [
                p.name for p in layout.hosts[0].processes
                if role in p.roles and (other in p.roles) == (kind == "fused")
            ]  # fmt: skip
            factor = _factor(
                sum(seen.process_s.get(name, 0.0) for name in names),
                sum(per_step.get(name, 0.0) for name in names),
            )
            changed[f"{role}_{kind}"] = scaled(getattr(costs, f"{role}_{kind}"), factor)
    alone = [p.name for p in layout.hosts[0].processes if p.roles == ("broker",)]
    if alone:
        changed["store_s"] = costs.store_s * _factor(
            seen.process_s.get(alone[0], 0.0), per_step.get(alone[0], 0.0)
        )
    return costs.model_copy(update=changed)


def scaled(costs: _Part, factor: float) -> _Part:
    """All parts times ``factor``."""
    return costs.model_copy(update={name: factor * value for name, value in costs})


def _factor(seen_s: float, said_s: float) -> float:
    if seen_s <= 0 or said_s <= 0:
        return 1.0
    return min(MOST, max(1 / MOST, seen_s / said_s))
