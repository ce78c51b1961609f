"""Which trials a plan makes, and what is fitted to them: the costs, then the rate of each layout tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rollbus_core.cores import num_cores
from rollbus_core.feed import Feed
from rollbus_core.plan.calibrate import Seen, calibrated, mean_of, said_of
from rollbus_core.plan.costs import StageCosts
from rollbus_core.plan.layouts import Layout
from rollbus_core.plan.trials import Tried
from rollbus_launch.planning import layouts
from rollbus_launch.planning.layouts import Machines
from rollbus_launch.planning.trial import Trial

#: Events of the simulation that a trial's rate is held against: as many as the stated layout gets.
SAID_EVENTS = 90_000


@dataclass(frozen=True)
class _Trials:
    """The runs of one layout; ``share``: its part of the planned batch."""

    layout: Layout
    feed: Feed
    runs: tuple[Seen, ...]
    share: float
    max_batch: int

    def fitted(self, costs: StageCosts) -> StageCosts:
        """``costs`` with which the model uses what the runs used."""
        return calibrated(
            costs, self.layout, self.feed, mean_of(self.runs), max_batch=self.max_batch, share=self.share
        )

    def told(self, costs: StageCosts) -> Tried:
        """The rates, and what the model says with ``costs``."""
        seen, host = mean_of(self.runs), self.layout.hosts[0]
        said = said_of(
            self.layout, costs, self.feed, seen, max_batch=self.max_batch, share=self.share,
            max_events=SAID_EVENTS,
        )  # fmt: skip
        return Tried(
            num_cores=host.num_cores, processes=tuple(p.name for p in host.processes), slices=host.slices,
            steps_per_s=tuple(run.steps_per_s for run in self.runs), said_per_s=said.steps_per_s,
            seconds=sum(run.seconds for run in self.runs), episode_steps=seen.episode_steps,
            others_cores=seen.others_cores,
        )  # fmt: skip


def tried(resolved: Any, costs: StageCosts) -> StageCosts:
    """``costs`` fitted to trials, with their rates: as stated, hub and actor fused or apart (what is not
    stated), and again as stated, because a machine is not as fast in one minute as in the next."""
    stated = tuple(resolved.recipe.deploy.processes)
    fused = any({"hub", "actor"} <= set(entry.replace(" ", "").split("+")) for entry in stated)
    other = layouts.APART if fused else layouts.FUSED
    first, between, again = (_run(resolved, entries) for entries in (stated, other, stated))
    made = [each for each in (between, _together(first, again)) if each is not None]
    for each in made:
        costs = each.fitted(costs)
    if not made:
        return costs
    trials = tuple(each.told(costs) for each in reversed(made))
    return costs.model_copy(update={"trials": trials, "trained_steps": trials[0].episode_steps})


def _run(resolved: Any, entries: Sequence[str]) -> _Trials | None:
    """One trial, no larger than this machine; None if nothing was seen in it."""
    recipe, cores = resolved.recipe, num_cores()
    env = recipe.env
    hubs, actors = min(env.hubs, cores), min(recipe.actor.count, cores)
    size = {
        "num_envs": hubs * (env.num_envs // env.hubs), "num_slices": hubs * (env.num_slices // env.hubs),
        "hubs": hubs, "actors": actors,
    }  # fmt: skip
    trial = Trial(resolved, processes=tuple(entries), **size)
    if (seen := trial.seen()) is None:
        return None
    layout = layouts.one_host(**size, entries=tuple(entries), machines=Machines(1, cores))
    return _Trials(layout, trial.feed, (seen,), hubs / env.hubs, recipe.actor.max_batch)


def _together(one: _Trials | None, other: _Trials | None) -> _Trials | None:
    if one is None or other is None:
        return one or other
    return replace(one, runs=one.runs + other.runs)
