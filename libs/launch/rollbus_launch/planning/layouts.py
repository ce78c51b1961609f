"""Layouts of a recipe: the one it states, and those that a planner tries on the machines there are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rollbus_core.plan.layouts import Host, Layout, Process, processes, split

FUSED = ("broker", "hub+actor", "learner")
APART = ("broker", "hub", "actor", "learner")
STATED = "as stated"
MAX_HUBS, SLICES_PER_HUB = 4, (1, 2, 4)


@dataclass(frozen=True)
class Machines:
    """What there is to run on."""

    num_hosts: int = 1
    num_cores: int = 2
    num_gpus: int = 0


def stated(recipe: Any, machines: Machines) -> Layout:
    """The recipe's own layout on one host."""
    return one_host(
        recipe.env.num_envs, recipe.env.num_slices, recipe.env.hubs, recipe.actor.count,
        tuple(recipe.deploy.processes), machines, STATED,
    )  # fmt: skip


def one_host(
    num_envs: int, num_slices: int, hubs: int, actors: int, entries: tuple[str, ...], machines: Machines,
    label: str = "",
) -> Layout:  # fmt: skip
    """All services on one host."""
    made = processes(entries, hubs, actors)
    slices = tuple(split(num_envs // hubs, num_slices // hubs) for _ in range(hubs))
    made_by = settings(entries, hubs, actors, num_slices)
    return Layout((Host(machines.num_cores, made, slices),), label or _label(entries, hubs, actors), made_by)


def settings(entries: Sequence[str], hubs: int, actors: int, num_slices: int) -> tuple[str, ...]:
    """The overrides of a recipe that make a layout."""
    return (
        f"deploy.processes=[{', '.join(entries)}]", f"env.hubs={hubs}", f"actor.count={actors}",
        f"env.num_slices={num_slices}",
    )  # fmt: skip


def candidates(recipe: Any, machines: Machines) -> Iterator[Layout]:
    """Hubs x slices x fused or apart on one host, as far as rows and cores make sense."""
    num_envs = recipe.env.num_envs
    for hubs in range(1, min(MAX_HUBS, machines.num_cores) + 1):
        for per_hub in SLICES_PER_HUB:
            num_slices = hubs * per_hub
            if num_envs % hubs or num_slices > num_envs:
                continue
            yield one_host(num_envs, num_slices, hubs, 1, APART, machines)
            if hubs == 1:
                yield one_host(num_envs, num_slices, 1, 1, FUSED, machines)


def on_hosts(recipe: Any, machines: Machines, pairs: int) -> Layout:
    """``pairs`` hubs with their actor on every host, each with the recipe's environments per hub.

    The first host has the broker and the learner besides. Hosts that do the same are one with copies.
    """
    rows = split(recipe.env.num_envs // recipe.env.hubs, max(1, recipe.env.num_slices // recipe.env.hubs))
    collect = tuple(Process(("hub", "actor"), index) for index in range(pairs))
    fewer = max(1, pairs - 1)
    first = Host(
        machines.num_cores, (Process(("broker",)), Process(("learner",)), *collect[:fewer]), (rows,) * fewer
    )
    others = Host(machines.num_cores, collect, (rows,) * pairs, machines.num_hosts - 1)
    hosts = (first, others) if machines.num_hosts > 1 else (first,)
    total = sum(host.copies * len(host.slices) for host in hosts)
    return Layout(hosts, f"{total} x hub+actor", (f"env.num_envs={total * sum(rows)}",))


def pairs_to_try(machines: Machines) -> list[int]:
    """Numbers of hub+actor processes per host: one, half of its cores, all but one, all."""
    cores = machines.num_cores
    return sorted({1, max(1, cores // 2), max(1, cores - 1), cores})


def _label(entries: tuple[str, ...], hubs: int, actors: int) -> str:
    kind = "hub+actor" if any({"hub", "actor"} <= set(_roles(e)) for e in entries) else "apart"
    return f"{kind}, {hubs} hub{'s' * (hubs > 1)}, {actors} actor{'s' * (actors > 1)}"


def _roles(entry: str) -> list[str]:
    return [role.strip() for role in entry.split("+")]
