"""Which processes run where: the input of the model beside the costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Process:
    """One process: its roles in the order in which they are polled, with their index."""

    roles: tuple[str, ...]
    index: int = 0

    @property
    def name(self) -> str:
        return f"{'+'.join(self.roles)}-{self.index}"


@dataclass(frozen=True)
class Host:
    """A machine, or ``copies`` machines that do the same: one of them is simulated for all."""

    num_cores: int
    processes: tuple[Process, ...]
    #: Rows of each slice, by hub index on this host.
    slices: tuple[tuple[int, ...], ...] = ()
    copies: int = 1


@dataclass(frozen=True)
class Layout:
    """All hosts of a run. The broker and the learner are on the first."""

    hosts: tuple[Host, ...]
    label: str = ""
    #: Settings that make it: "env.hubs=2", ...
    settings: tuple[str, ...] = field(default=())

    @property
    def num_rows(self) -> int:
        """Environments of the run."""
        return sum(host.copies * sum(map(sum, host.slices)) for host in self.hosts)

    def count(self, role: str) -> int:
        """Processes that host ``role``."""
        return sum(host.copies * sum(role in p.roles for p in host.processes) for host in self.hosts)


def processes(entries: Sequence[str], hubs: int, actors: int) -> tuple[Process, ...]:
    """The processes of ``deploy.processes`` without evaluators, which idle while others train."""
    counts = {"hub": hubs, "actor": actors}
    made = []
    for entry in entries:
        wanted = {role.strip(): counts.get(role.strip(), 1) for role in entry.split("+")}
        wanted.pop("evaluator", None)
        for index in range(max(wanted.values(), default=0)):
            made.append(Process(tuple(role for role, num in wanted.items() if num > index), index))
    return tuple(made)


def split(num: int, parts: int) -> tuple[int, ...]:
    """``num`` rows in ``parts`` slices, as even as possible, the larger ones first."""
    small, more = divmod(num, parts)
    return tuple(small + (index < more) for index in range(parts))


def assign(near: Sequence[int | None], num_actors: int) -> list[int]:
    """The actor of each slice, as the registry gives them: as even as possible, and ``near`` where it may.

    ``near``: per slice the actor in the hub's own process, None if there is none.
    """
    share, more = divmod(len(near), num_actors)
    load, chosen = [0] * num_actors, list(near)
    for number, actor in enumerate(near):
        above = sum(num > share for num in load)
        if actor is None or load[actor] >= share + (above < more):
            chosen[number] = None
        else:
            load[actor] += 1
    result = []
    for number, actor in enumerate(chosen):
        if actor is None:
            actor = min(range(num_actors), key=lambda a: (load[a], a != near[number]))
            load[actor] += 1
        result.append(actor)
    return result
