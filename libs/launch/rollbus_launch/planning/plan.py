"""What to run: the model's answers for a recipe's own layout and for others, on the machines there are."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rollbus_core.config.load import Resolved, load
from rollbus_core.cores import num_cores
from rollbus_core.feed import Feed
from rollbus_core.plan import memory
from rollbus_core.plan.costs import StageCosts, load_costs
from rollbus_core.plan.layouts import Layout
from rollbus_core.plan.model import Prediction, predict
from rollbus_core.plan.trials import Basis, basis
from rollbus_launch.planning import auto_layout, cache, layouts
from rollbus_launch.planning.layouts import Machines
from rollbus_launch.serve import limit_threads
from rollbus_wire.errors import ConfigError

#: Another layout is recommended if it is faster by more than the model can tell apart.
WORTH = 1.05
#: Episodes that training makes longer by less than this keep their length.
STEADY = 1.1
#: One way between hosts.
NETWORK_S = 100e-6
#: Events of a simulation: of the stated layout, and of one that is only compared.
STATED_EVENTS, MAX_EVENTS = 90_000, 20_000


@dataclass(frozen=True)
class Option:
    """One layout and what the model says of it."""

    layout: Layout
    prediction: Prediction
    bytes: float
    #: What the prediction leans on; its factor is in it.
    basis: Basis
    num_learners: int = 1

    def row(self) -> dict[str, Any]:
        """For tables."""
        return {
            "layout": self.layout.label, "slices": _num_slices(self.layout), "rows": self.layout.num_rows,
            "learners": self.num_learners, "steps_per_s": self.prediction.steps_per_s,
            "bottleneck": self.prediction.bottleneck,
            "busy": {role: round(share, 2) for role, share in self.prediction.busy.items()},
            "memory_mb": self.bytes / 1e6, "basis": self.basis.kind,
        }  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """Everything `rollbus plan` says."""

    stated: Option
    #: All layouts of one host that were tried, fastest first.
    options: list[Option]
    #: With several hosts, each with more or fewer processes; fastest first.
    hosts: list[Option]
    episode_steps: float
    #: steps/s at the untrained policy's episode length and at the limit.
    between: tuple[float, float]
    #: Memory of the stated layout by use.
    memory: dict[str, float]
    costs: StageCosts
    machines: Machines

    @property
    def recommended(self) -> Option:
        """The fastest; the stated one unless another is clearly faster."""
        best = max([*self.options, *self.hosts], key=lambda option: option.prediction.steps_per_s)
        worth = best.prediction.steps_per_s > WORTH * self.stated.prediction.steps_per_s
        return best if worth else self.stated

    @property
    def assumptions(self) -> list[str]:
        """What the figures hold for."""
        return assumptions(self)

    def to_data(self) -> dict[str, Any]:
        """For --json."""
        return {
            **asdict(self.stated.prediction), "episode_steps": self.episode_steps,
            "steps_per_s_untrained": self.between[0], "steps_per_s_long_episodes": self.between[1],
            "basis": self.stated.basis.text, "factor": self.stated.basis.factor,
            "memory_bytes": self.memory,
            "recommended": self.recommended.row() | {"settings": list(self.recommended.layout.settings)},
            "layouts": [option.row() for option in self.options],
            "hosts": [option.row() for option in self.hosts],
            "assumptions": self.assumptions, "costs": self.costs.model_dump(),
        }  # fmt: skip


def prepare(
    recipe: Path, overrides: Sequence[str], *, costs_file: Path | None = None, fresh: bool = False
) -> tuple[Resolved, StageCosts]:
    """The recipe and its costs: given, measured before, or measured now. Raises `ConfigError`.

    The layout is the one that `rollbus train` would choose here, unless the recipe states one.
    """
    resolved = load(recipe, overrides)
    choice = auto_layout.choose(resolved, num_cores())
    if choice.overrides:
        resolved = load(recipe, [*overrides, *choice.overrides])
    if len(resolved.feeds) > 1 or not resolved.online:
        raise ConfigError(
            f"algorithm {resolved.recipe.algorithm.name!r} learns from data sets, which the planner does not "
            "know yet; plan a recipe whose only data is what its actors collect"
        )
    if resolved.recipe.env.placement != "inline" and costs_file is None:
        raise ConfigError(
            f"env.placement is {resolved.recipe.env.placement}: costs are measured with environments in the "
            "hub; plan with env.placement=inline, or give --costs of such environments"
        )
    if costs_file is not None:
        return resolved, load_costs(costs_file)
    costs = None if fresh else cache.cached(resolved)
    return resolved, costs if costs is not None else _measured(resolved)


def _measured(resolved: Resolved) -> StageCosts:
    limit_threads()
    from rollbus_launch.planning.measure import measure

    console, began = sys.stderr, time.monotonic()
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        costs = measure(resolved, lambda text: print(f"measuring: {text}", file=console))
    costs = costs.model_copy(update={"machine": cache.machine()})
    cache.keep(resolved, costs)
    print(
        f"measured in {time.monotonic() - began:.0f} s; kept for the next plan (--fresh measures anew)",
        file=console,
    )
    return costs


def make(resolved: Resolved, costs: StageCosts, machines: Machines, *, episode_steps: float = 0.0) -> Plan:
    """Predict the stated layout, others on one host, and many hosts."""
    recipe = resolved.recipe
    expected = episode_steps or expected_episode(costs)
    planner = _Planner(recipe, resolved.feed, costs, expected)
    stated = planner.option(layouts.stated(recipe, machines))
    ends = (costs.episode_steps, max(costs.episode_steps, costs.episode_limit))
    between = tuple(
        _Planner(recipe, resolved.feed, costs, steps).option(stated.layout).prediction.steps_per_s
        for steps in ends
    )
    options = [planner.option(layout) for layout in layouts.candidates(recipe, machines)]
    hosts = planner.many(machines) if machines.num_hosts > 1 or machines.num_gpus else []
    used = memory.host_bytes(
        stated.layout.hosts[0], costs, resolved.feed, recipe.broker.slab_bytes, first=True
    )
    return Plan(
        stated, _fastest_first(options), _fastest_first(hosts), expected, (between[0], between[1]), used,
        costs, machines,
    )  # fmt: skip


def expected_episode(costs: StageCosts) -> float:
    """Mean episode length over a training: geometric mean of the untrained policy's and the limit.

    Nobody knows it beforehand; where the limit ends all episodes, as of robots that cannot fall, it is exact.
    Episodes that some seconds of training have not made longer are taken to stay as they are.
    """
    limit = costs.episode_limit
    # Few episodes end in a short measurement, and their mean may come out longer than any can be.
    untrained = min(costs.episode_steps, limit) if limit > 0 else costs.episode_steps
    steady = 0 < costs.trained_steps < STEADY * untrained
    return untrained if steady or limit <= untrained else math.sqrt(untrained * limit)


class _Planner:
    """Predictions for one recipe."""

    def __init__(self, recipe: Any, feed: Feed, costs: StageCosts, episode_steps: float) -> None:
        self.recipe, self.feed, self.costs = recipe, feed, costs
        self._episode_steps = episode_steps

    def option(self, layout: Layout, num_learners: int = 1) -> Option:
        """``layout`` with its prediction; batches grow with the environments beyond the recipe's."""
        grown = layout.num_rows / self.recipe.env.num_envs
        feed, costs = self.feed, self.costs
        if grown != 1 and feed.table.sampler == "queue":
            table = feed.table.model_copy(update={"batch_steps": round(feed.table.batch_steps * grown)})
            feed = feed.model_copy(update={"table": table})
            costs = costs.model_copy(
                update={"update_s": costs.update_s * grown, "learner_s": costs.learner_s * grown}
            )
        prediction = predict(
            layout, costs, feed, episode_steps=self._episode_steps, max_batch=self.recipe.actor.max_batch,
            num_ranks=num_learners, network_s=NETWORK_S if len(layout.hosts) > 1 else 0.0,
            max_events=STATED_EVENTS if layout.label == layouts.STATED else MAX_EVENTS,
        )  # fmt: skip
        used = memory.largest(layout, costs, feed, self.recipe.broker.slab_bytes)
        leans = basis(layout, self.costs.trials)
        return Option(layout, prediction.times(leans.factor), used, leans, num_learners)

    def many(self, machines: Machines) -> list[Option]:
        """Every number of processes per host, with one learner and with as many as keep up."""
        options = []
        for pairs in layouts.pairs_to_try(machines):
            layout = layouts.on_hosts(self.recipe, machines, pairs)
            options.append(self.option(layout))
            wanted = self._learners(options[-1])
            limit = machines.num_gpus or machines.num_hosts
            if (num := min(wanted, limit)) > 1:
                options.append(self.option(layout, num))
        return options

    def _learners(self, option: Option) -> int:
        """Learners that would be busy most of the time at the rate of collection alone."""
        if option.prediction.busy.get("learner", 0.0) < 0.9:
            return 1
        costs = self.costs.model_copy(update={"update_s": 0.0})
        free = _Planner(self.recipe, self.feed, costs, self._episode_steps)
        rate = free.option(option.layout).prediction.steps_per_s
        return math.ceil(rate * self.costs.update_s / max(1, self.feed.table.batch_steps))


def assumptions(plan: Plan) -> list[str]:
    """What the figures hold for, in words."""
    costs, machines = plan.costs, plan.machines
    told = [
        f"episodes of {plan.episode_steps:,.0f} steps (untrained {costs.episode_steps:,.0f}, limit "
        f"{costs.episode_limit or math.inf:,.0f}); --episode-steps says otherwise",
        "nothing else runs on the machine; evaluations and checkpoints during training are left out",
        f"costs were measured on {costs.machine.get('cpu', 'another machine')}, one core per process",
    ]
    if machines.num_hosts > 1 or machines.num_gpus:
        told += [
            "every host has cores like this one's; hosts that do the same are simulated once, with the load "
            "of all on broker and learner",
            f"messages between hosts take {1e6 * NETWORK_S:.0f} us and links are never full",
            "the batch grows with the environments and an update in proportion to it",
            "several learners share an update evenly and cost nothing to keep together (a run has one today)",
        ]
    if machines.num_gpus and not costs.update_on_device:
        told.append("the update was measured on this machine's CPU: give --costs of the accelerator")
    return told


def _fastest_first(options: list[Option]) -> list[Option]:
    return sorted(options, key=lambda option: -option.prediction.steps_per_s)


def _num_slices(layout: Layout) -> int:
    return sum(host.copies * sum(map(len, host.slices)) for host in layout.hosts)
