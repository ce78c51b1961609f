"""``deploy.layout: auto``: processes, hubs, actors and slices that nobody has set, chosen for this machine.

Stage costs come from the last run of the same recipe on this machine: seconds of work per environment
step of collecting (hub and actor) and of updating. Without any, one process collects. With n processes
that collect, a learner and c cores a run makes ``min(n / collect, 1 / update, c / (collect + update))``
steps per second: each process is one core at most, and all together are all cores at most.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rollbus_core.config.source import DEFAULT
from rollbus_launch.planning import cache, layouts
from rollbus_launch.progress import by_role

#: What is chosen where it has its default value.
KEYS = ("deploy.processes", "env.hubs", "actor.count", "env.num_slices")
#: A further process must promise this much, because the formula leaves out what processes cost each other.
WORTH = 1.1
#: Below this many updates costs are those of starting.
MIN_UPDATES = 8


@dataclass(frozen=True)
class Costs:
    """Seconds of work per environment step."""

    collect_s: float
    update_s: float

    def steps_per_s(self, pairs: int, cores: int) -> float:
        """With ``pairs`` processes that collect, beside the learner."""
        return min(pairs / self.collect_s, 1 / self.update_s, cores / (self.collect_s + self.update_s))


@dataclass(frozen=True)
class Choice:
    """Overrides and why."""

    overrides: tuple[str, ...]
    reason: str


def choose(resolved: Any, cores: int) -> Choice:
    """The layout for ``resolved``; no overrides where the recipe states it."""
    recipe, origins = resolved.recipe, resolved.origins
    if recipe.deploy.layout == "stated" or recipe.run.deterministic or not resolved.online:
        return Choice((), "")
    if any(_set(origins, key) for key in KEYS):
        return Choice((), "")
    if recipe.env.placement != "inline":
        return _pairs(
            1, 2, f"environments are {recipe.env.placement}: two slices, one steps while one decides"
        )
    costs = _recall(resolved)
    if costs is None:
        return _pairs(1, 1, "no run of this recipe was long enough yet to be measured on this machine")
    rows = recipe.env.num_envs
    best = 1
    for pairs in (n for n in range(2, cores + 1) if rows % n == 0):
        if costs.steps_per_s(pairs, cores) > WORTH * costs.steps_per_s(best, cores):
            best = pairs
    return _pairs(
        best, best,
        f"a step cost {costs.collect_s * 1e6:.0f} us to collect and {costs.update_s * 1e6:.0f} us to learn "
        f"from in the last run of this recipe on this machine, and there are {cores} cores (those figures: "
        f"{_path(resolved)}; without that file one process collects)",
    )  # fmt: skip


class Measuring:
    """Costs as the services of one start of a run report them."""

    def __init__(self) -> None:
        self.reports: list[Costs] = []
        #: Updates that the learner had done when it was first heard, in earlier starts.
        self._before: int | None = None

    def hear(self, members: Sequence[Mapping[str, Any]]) -> None:
        """Take a report; while services only start it says nothing."""
        if self._before is None:
            self._before = next((each.get("updates", 0) for each in by_role(members, "learner")), None)
        if costs := measured(members, self._before or 0):
            self.reports.append(costs)


def measured(members: Sequence[Mapping[str, Any]], before: int = 0) -> Costs | None:
    """The costs that ``members`` report now; None while they only start, ``before`` updates having been done
    in earlier starts.
    """
    learner = next(iter(by_role(members, "learner")), {})
    rate, collectors = learner.get("steps_per_s", 0.0), [*by_role(members, "hub"), *by_role(members, "actor")]
    busy = sum(each.get("busy") or 0.0 for each in collectors)
    if learner.get("updates", 0) - before < MIN_UPDATES or not (rate and busy and learner.get("busy")):
        return None
    return Costs(busy / rate, learner["busy"] / rate)


def remember(resolved: Any, reports: Sequence[Costs]) -> None:
    """Keep the median of what was `measured` during a run; nothing if it was too short."""
    if not reports:
        return
    costs = Costs(median(r.collect_s for r in reports), median(r.update_s for r in reports))
    path = _path(resolved)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(costs)))
    except OSError:
        return


def _path(resolved: Any) -> Path:
    return cache.path(resolved).with_suffix(".run.json")


def _recall(resolved: Any) -> Costs | None:
    try:
        found = Costs(**json.loads(_path(resolved).read_text()))
        return found if found.collect_s > 0 and found.update_s > 0 else None
    except (OSError, ValueError, TypeError):
        return None


def _pairs(pairs: int, slices: int, reason: str) -> Choice:
    return Choice(
        layouts.settings(layouts.FUSED, pairs, pairs, slices),
        f"layout: {pairs} process{'es' * (pairs > 1)} with hub and actor, because {reason}",
    )  # fmt: skip


def _set(origins: Mapping[str, str], key: str) -> bool:
    return origins.get(key, DEFAULT) != DEFAULT
