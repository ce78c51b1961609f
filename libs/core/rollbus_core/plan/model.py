"""The discrete-event model of a run: steps per second, who is busy, and who holds the others up.

Every process is a loop over its services' polls, as `rollbus_core.service.run` is; processes of a host share
its cores (`Cores`). Thousands of actors: hosts that do the same are simulated once, with the load of all of
them on broker and learner (`Host.copies`), so that the time to simulate grows with kinds of hosts, not hosts.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace

from rollbus_core.feed import Feed
from rollbus_core.plan.cores import Cores, Timeline
from rollbus_core.plan.costs import StageCosts
from rollbus_core.plan.layouts import Host, Layout, assign
from rollbus_core.plan.services import (
    ActorModel,
    HubModel,
    LearnerModel,
    ModelService,
    Pause,
    Slice,
    StoreModel,
)
from rollbus_core.plan.tables import make_table
from rollbus_wire.errors import ConfigError

#: Updates before the rate is taken, at least so many after them, and simulated seconds.
WARM_UPDATES, NUM_UPDATES, MIN_S = 4, 12, 0.5
#: The simulation ends here at the latest, where the rate is known; never beyond ten times as many.
MAX_EVENTS = 150_000
#: User of the cores on which messages are carried.
IO = "i/o"


@dataclass(frozen=True)
class Prediction:
    """What the model says of one layout."""

    steps_per_s: float
    updates_per_s: float
    #: Role -> share of time its services work, mean over them.
    busy: dict[str, float]
    #: Busiest role, or "cores" where more processes are busy than there are cores.
    bottleneck: str
    #: Cores in use on each kind of host.
    cores_used: tuple[float, ...]
    #: Of the first host, by process, and of the I/O threads of all (`IO`).
    process_cores: dict[str, float]
    num_events: int

    def times(self, factor: float) -> Prediction:
        """The same work per step at ``factor`` times the rate; nobody is busy above all of the time."""
        return replace(
            self, steps_per_s=factor * self.steps_per_s, updates_per_s=factor * self.updates_per_s,
            busy={role: min(1.0, factor * share) for role, share in self.busy.items()},
            cores_used=tuple(factor * cores for cores in self.cores_used),
            process_cores={user: factor * cores for user, cores in self.process_cores.items()},
        )  # fmt: skip


class _Process:
    """A loop over services: busy, or asleep until a message comes."""

    def __init__(
        self, name: str, services: list[ModelService], host: Cores, timeline: Timeline, wait_s: float
    ) -> None:  # fmt: skip
        self.name, self.services, self.host = name, services, host
        self._timeline, self._wait_s = timeline, wait_s
        self.asleep, self._owed_s = False, 0.0
        self._loop = self._turns()

    def resume(self) -> None:
        """Go on to the next piece of work, or to sleep."""
        self.asleep = False
        work = next(self._loop)
        if work is None:
            self.asleep = True
        elif isinstance(work, Pause):
            self._timeline.after(work.seconds, self.resume)
        else:
            self.host.run(work, self.resume, self.name)

    def _turns(self) -> Generator[float | Pause | None, None, None]:
        while True:
            busy = False
            for service in self.services:
                busy |= yield from self._poll(service)
            if not busy and not any(service.inbox for service in self.services):
                yield self._take_owed(self._wait_s)
                if not any(service.inbox for service in self.services):
                    yield None

    def _poll(self, service: ModelService) -> Generator[float | Pause | None, None, bool]:
        """One poll of ``service``; one that finds nothing is paid with the next piece of work."""
        poll = service.poll()
        while True:
            try:
                work = next(poll)
            except StopIteration as end:
                if not end.value:
                    self._owed_s += service.idle_s
                return bool(end.value)
            began_s = self._timeline.now_s
            yield work if isinstance(work, Pause) else self._take_owed(work)
            service.busy_s += self._timeline.now_s - began_s

    def _take_owed(self, work_s: float) -> float:
        work_s, self._owed_s = work_s + self._owed_s, 0.0
        return work_s


class Simulation:
    """One layout with its costs, ready to run."""

    def __init__(
        self, layout: Layout, costs: StageCosts, feed: Feed, *, episode_steps: float = 0.0,
        max_batch: int = 1024, num_ranks: int = 1, network_s: float = 0.0, max_events: int = MAX_EVENTS,
    ) -> None:  # fmt: skip
        """``episode_steps`` 0: as measured. ``network_s``: one way, between hosts. Raises `ConfigError`."""
        self.layout, self.costs, self.feed = layout, costs, feed
        self._episode_steps = max(1.0, episode_steps or costs.episode_steps)
        self._max_batch, self._num_ranks, self._network_s = max_batch, num_ranks, network_s
        self._max_events = max_events
        self.timeline = Timeline()
        self._process_of: dict[ModelService, _Process] = {}
        self._processes: list[_Process] = []
        self.slices: list[Slice] = []
        self.store = StoreModel(
            "broker", "broker-0", self._send, costs.idle.broker, costs=costs,
            table=make_table(feed.table), num_decisions=feed.num_decisions,
        )  # fmt: skip
        self.learner = LearnerModel(
            "learner", "learner-0", self._send, costs.idle.learner, costs=costs, store=self.store,
            num_ranks=num_ranks, now_s=lambda: self.timeline.now_s,
        )  # fmt: skip
        self.store.learner = self.learner
        for host in layout.hosts:
            self._add(host)
        if self.store not in self._process_of or self.learner not in self._process_of or not self.slices:
            raise ConfigError(f"layout {layout.label!r} lacks a broker, a learner or slices")

    def run(self) -> Prediction:
        """Simulate until the rate is known."""
        for each in self.slices:
            each.ticked = True
            self._send(each.actor, self.store, ("ask", each))
        self._send(self.learner, self.store, ("sample",))
        for process in self._processes:
            process.resume()
        updates, timeline = self.learner.updates, self.timeline
        begun: tuple[float, dict[ModelService, float], list[dict[str, float]]] | None = None
        while timeline.num_events < 10 * self._max_events and timeline.step():
            if begun is None and len(updates) >= WARM_UPDATES:
                begun = (timeline.now_s, self._busy(), [dict(host.used_by) for host in timeline.hosts])
            elif begun is not None and updates[-1][0] == timeline.now_s and self._enough(begun[0]):
                break
        return self._prediction(*(begun or (0.0, {}, [{}] * len(timeline.hosts))))

    def _enough(self, since_s: float) -> bool:
        """Whether the rate is known, by the updates since ``since_s``."""
        num = len(self.learner.updates) - WARM_UPDATES
        long = num >= NUM_UPDATES and self.timeline.now_s - since_s >= MIN_S
        return long or (num >= 3 and self.timeline.num_events > self._max_events)

    def _prediction(
        self, since_s: float, busy: dict[ModelService, float], used: list[dict[str, float]]
    ) -> Prediction:
        updates = self.learner.updates
        first = WARM_UPDATES - 1 if len(updates) > WARM_UPDATES else 0
        span_s = updates[-1][0] - updates[first][0] if updates else 0.0
        if not span_s:
            raise ConfigError(
                f"layout {self.layout.label!r} finished {len(updates)} updates in "
                f"{self.timeline.now_s:.3g} simulated seconds: too few for a rate"
            )
        steps = sum(num for _, num in updates[first + 1 :])
        duration_s = self.timeline.now_s - since_s
        shares: dict[str, list[float]] = {}
        for service, now_s in self._busy().items():
            shares.setdefault(service.role, []).append((now_s - busy.get(service, 0.0)) / duration_s)
        means = {role: min(1.0, sum(each) / len(each)) for role, each in shares.items()}
        by_user = [
            {user: (now_s - before.get(user, 0.0)) / duration_s for user, now_s in host.used_by.items()}
            for host, before in zip(self.timeline.hosts, used, strict=True)
        ]
        cores = tuple(sum(each.values()) for each in by_user)
        return Prediction(
            steps / span_s, (len(updates) - 1 - first) / span_s, means, self._bottleneck(means, cores),
            cores, by_user[0], self.timeline.num_events,
        )  # fmt: skip

    def _bottleneck(self, busy: dict[str, float], cores: tuple[float, ...]) -> str:
        """The role that is busy almost always; else cores, if a host has none left; else the busiest."""
        collect = sum(busy.get(role, 0.0) for role in ("hub", "actor")) if self._fused else 0.0
        shares = busy | {"hub+actor": min(1.0, collect)}
        role = max(shares, key=lambda name: shares[name])
        full = any(
            used > 0.97 * host.num_cores for used, host in zip(cores, self.timeline.hosts, strict=True)
        )
        return "cores" if full and sum(share > 0.5 for share in busy.values()) > 2 else role

    @property
    def _fused(self) -> bool:
        return all(each.fused for each in self.slices)

    def _busy(self) -> dict[ModelService, float]:
        return {service: service.busy_s for service in self._process_of}

    # --- building ----------------------------------------------------------------------------

    def _add(self, host: Host) -> None:
        cores = self.timeline.add(Cores(host.num_cores, self.costs.slowdown))
        hubs: list[HubModel] = []
        actors: list[ActorModel] = []
        for process in host.processes:
            services = [self._service(role, process.index, hubs, actors) for role in process.roles]
            made = _Process(process.name, services, cores, self.timeline, self.costs.idle.wait)
            self._processes.append(made)
            for service in services:
                self._process_of[service] = made
        self.store.actors += [(actor, host.copies) for actor in actors]
        hubs.sort(key=lambda hub: hub.name)
        actors.sort(key=lambda actor: actor.name)
        rows = [(hub, num_rows) for hub, sizes in zip(hubs, host.slices) for num_rows in sizes]
        homes = [self._process_of[actor] for actor in actors]
        near = [homes.index(home) if (home := self._process_of[hub]) in homes else None for hub, _ in rows]
        for (hub, num_rows), chosen in zip(rows, assign(near, len(actors)) if actors else (), strict=True):
            actor = actors[chosen]
            fused = self._process_of[hub] is homes[chosen]
            each = Slice(num_rows, host.copies, hub, actor, fused)
            actor.slices.append(each)
            self.slices.append(each)

    def _service(self, role: str, index: int, hubs: list[HubModel], actors: list[ActorModel]) -> ModelService:
        costs, name = self.costs, f"{role}-{index}"
        if role == "broker":
            return self.store
        if role == "learner":
            return self.learner
        if role == "hub":
            hubs.append(
                HubModel(role, name, self._send, costs.idle.hub, costs=costs,
                         episode_steps=self._episode_steps)
            )  # fmt: skip
            return hubs[-1]
        if role == "actor":
            actors.append(
                ActorModel(role, name, self._send, costs.idle.actor, costs=costs, store=self.store,
                           episode_steps=self._episode_steps, max_batch=self._max_batch)
            )  # fmt: skip
            return actors[-1]
        raise ConfigError(f"the model knows no role {role!r}: broker, hub, actor, learner")

    # --- messages ----------------------------------------------------------------------------

    def _send(self, sender: ModelService, receiver: ModelService, message: tuple) -> None:
        here, there = self._process_of[sender], self._process_of[receiver]
        if here is there:
            receiver.inbox.append(message)
            return
        # I/O threads work on a core, too; between hosts the way takes time.
        distance_s = 0.0 if here.host is there.host else self._network_s
        here.host.run(self.costs.message_s, lambda: self._arrive(there, receiver, message, distance_s), IO)

    def _arrive(self, process: _Process, receiver: ModelService, message: tuple, distance_s: float) -> None:
        delay_s = distance_s + (self.costs.wake_s if process.asleep and process.host.idle else 0.0)
        if delay_s:
            self.timeline.after(delay_s, lambda: self._deliver(process, receiver, message))
        else:
            self._deliver(process, receiver, message)

    def _deliver(self, process: _Process, receiver: ModelService, message: tuple) -> None:
        receiver.inbox.append(message)
        if process.asleep:
            process.resume()


def predict(layout: Layout, costs: StageCosts, feed: Feed, **settings: float) -> Prediction:
    """Simulate ``layout``; ``settings`` are those of `Simulation`."""
    return Simulation(layout, costs, feed, **settings).run()  # type: ignore[arg-type]
