"""A rehearsal: the real services of a recipe in one process, polled in turn, every poll timed.

Nothing overlaps here, so what a poll costs is CPU time that no other process disturbs. The model
(`rollbus_core.plan`) puts the polls of several processes side by side again.
"""

from __future__ import annotations

import contextlib
import gc
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollbus_core.access import Access
from rollbus_core.paths import RunPaths
from rollbus_core.service import Service
from rollbus_launch import build
from rollbus_launch.awaiting import AwaitingSpec
from rollbus_launch.planning.memory import Growth
from rollbus_launch.planning.recipe import quiet
from rollbus_wire.errors import DeadlineExceeded
from rollbus_wire.polling import Poller

#: A rehearsal that does not come to work within this time is given up.
PATIENCE_S = 60.0
#: One sample is this long.
WINDOW_S = 0.1
#: CPU time, and time at most, before anything is measured.
WARM_CPU_S, WARM_S = 0.5, 1.5
ROLES = ("broker", "hub", "actor", "learner")
WAITS = 200
#: Turns of hub and actor between those of broker and learner.
OTHERS_EVERY = 16


@dataclass
class Tally:
    """Turns of hub and actor, what they did and the CPU seconds they took."""

    hub_s: float = 0.0
    actor_s: float = 0.0
    turns: int = 0
    ticks: int = 0
    rows: int = 0
    episodes: int = 0
    #: Ticks of turns with ends.
    ending: int = 0


@dataclass
class Sample:
    """What one window of a rehearsal saw: seconds of CPU and counts."""

    #: Turns in which no episode ended, and those in which any did.
    plain: Tally = field(default_factory=Tally)
    ended: Tally = field(default_factory=Tally)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(ROLES, 0.0))
    idle_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(ROLES, 0.0))
    turns: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ROLES, 0))
    idle_turns: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ROLES, 0))
    ticks: int = 0
    rows: int = 0
    episodes: int = 0
    chunks: int = 0
    updates: int = 0
    #: Part of the actor's time: records of decisions, new weights into the engine.
    record_s: float = 0.0
    apply_s: float = 0.0
    applied: int = 0
    #: CPU time of all other threads, those of ZeroMQ foremost.
    other_s: float = 0.0


class FreeUpdates:
    """A trainer whose updates cost nothing, but for the first, which is real and kept."""

    def __init__(self, trainer: Any, num_threads: int) -> None:
        self.trainer = trainer
        self._alone = num_threads == 1 and trainer.device.type == "cpu"
        self.batch: tuple[Any, Any, int] | None = None
        self._metrics: dict[str, float] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.trainer, name)

    def apply(self, batch: Any, sequences: Any, table_steps: int) -> dict[str, float]:
        """See `Trainer.apply`."""
        if self.batch is None:
            self.batch = ({name: column.clone() for name, column in batch.items()}, sequences, table_steps)
            self._metrics = self.trainer.apply(batch, sequences, table_steps)
        else:
            self.trainer.skip(sequences)
        return dict(self._metrics)

    def real(self) -> float:
        """Seconds of a real update with the batch that was kept: CPU time where one thread does it all."""
        assert self.batch is not None
        clock = time.thread_time if self._alone else time.perf_counter
        began = clock()
        self.trainer.apply(*self.batch)
        return clock() - began


class Rehearsal:
    """Services of ``resolved`` with ``num_rows`` rows in each of ``num_slices`` slices of one hub.

    ``time_limit`` > 0 ends episodes after so many steps. Use it as a context manager.
    """

    def __init__(
        self, resolved: Any, *, num_rows: int, num_slices: int, fused: bool, time_limit: int = 0,
        growth: Growth | None = None,
    ) -> None:  # fmt: skip
        """``growth`` hears which role makes the process grow while it starts."""
        self._growth = growth
        self.resolved = _alone(resolved, num_rows * num_slices, num_slices, time_limit)
        self.fused = fused
        self.updates: FreeUpdates | None = None
        self._tally, self._seen, self._applied_s = Tally(), (0, 0, 0), 0.0
        self._sample, self._turns, self._idle = Sample(), 0, True
        self._patient_until = time.monotonic() + PATIENCE_S

    def __enter__(self) -> Rehearsal:
        self._folder = Path(tempfile.mkdtemp(prefix="rollbus-plan-"))
        self.paths = RunPaths(self._folder)
        self.paths.create()
        self._stack = contextlib.ExitStack()
        self._stack.callback(self._remove)
        self._stack.enter_context(self.paths.alive())
        self.paths.config.write_text(self.resolved.to_yaml())
        self.poller = Poller()
        self.services: dict[str, Service] = {}
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self) -> None:
        together = [["hub", "actor"]] if self.fused else [["hub"], ["actor"]]
        for roles in [["broker"], *together, ["learner"]]:
            made = build.services(
                roles, 0, self.resolved, self.paths, Access(None), should_stop=lambda: False
            )
            self.services |= dict(zip(roles, made, strict=True))
        for service in self.services.values():
            self._stack.callback(service.stop)
            service.start(self.poller)
        self.until(lambda: all(service.ready for service in self.services.values()), "ready services")
        learner, actor = _inner(self.services["learner"]), _inner(self.services["actor"])
        self.updates = learner.trainer = FreeUpdates(learner.trainer, self.resolved.recipe.learner.threads)
        self.weights_bytes = sum(array.nbytes for array in learner.trainer.published().values())
        _timed(actor.recorder, "decide", self._recorded)
        _timed(actor.engine, "set_weights", self._applied)
        gc.freeze()  # as the processes of a run are: their collector leaves what was imported alone
        self.until(lambda: self._hub.ticks > 20, "ticks")
        # The first turns are slower by a fifth: pages, caches, the interpreter's own specialisation.
        warm_s, latest_s = time.thread_time() + WARM_CPU_S, time.monotonic() + WARM_S
        self.until(lambda: time.thread_time() > warm_s or time.monotonic() > latest_s, "warm turns")

    def settled(self) -> None:
        """Growth from here on is nobody's."""
        self._growth = None

    def wait_s(self) -> float:
        """One look at all sockets that finds nothing to wait for."""
        began = time.thread_time()
        for _ in range(WAITS):
            self.poller.wait(0.0)
        return (time.thread_time() - began) / WAITS

    # --- measuring ---------------------------------------------------------------------------

    def until(self, done: Callable[[], bool], what: str) -> None:
        """Turn until ``done``. Raises `DeadlineExceeded`."""
        while not done():
            if time.monotonic() > self._patient_until:
                raise DeadlineExceeded(
                    f"the rehearsal came to no {what} within {PATIENCE_S:.0f} s; see that the recipe trains "
                    "(rollbus train), or give costs of a machine where it does (--costs)"
                )
            self._turn()

    def samples(self, seconds: float) -> list[Sample]:
        """Windows of a rehearsal that lasts ``seconds``."""
        return list(self._windows(seconds))

    def _windows(self, seconds: float) -> Iterator[Sample]:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._sample, before, cpu = Sample(), self._counts(), _other_threads_s()
            window = time.monotonic() + WINDOW_S
            while time.monotonic() < window:
                self._turn()
            for name, count in self._counts().items():
                setattr(self._sample, name, count - before[name])
            self._sample.other_s = _other_threads_s() - cpu
            if self._sample.ticks:
                yield self._sample

    def _turn(self) -> None:
        busy, sample, clock = False, self._sample, time.thread_time
        # Broker and learner have caches of their own in a run: they disturb the others rarely.
        self._turns += 1
        polled = ROLES if self._idle or not self._turns % OTHERS_EVERY else ("hub", "actor")
        for role in polled:
            service = self.services[role]
            began = clock()
            did = service.poll()
            took = clock() - began
            if did and role in ("hub", "actor"):
                self._book(role, took)
            if self._growth is not None:
                self._growth.add(role)
            if did:
                sample.seconds[role] += took
                sample.turns[role] += 1
            else:
                sample.idle_s[role] += took
                sample.idle_turns[role] += 1
            busy |= did
        self._idle = not busy
        if not busy and polled is ROLES:
            self.poller.wait(0.001)

    def _book(self, role: str, took: float) -> None:
        """What a poll of hub or actor did; the actor's belongs to the hub's before it."""
        if role == "actor":
            self._tally.actor_s += took - self._applied_s
            self._tally.turns += 1
            self._applied_s = 0.0
            return
        hub, (ticks, rows, episodes) = self._hub, self._seen
        self._seen = (hub.ticks, hub.steps, hub.episodes)
        self._tally = tally = self._sample.ended if hub.episodes > episodes else self._sample.plain
        tally.hub_s += took
        tally.ticks += hub.ticks - ticks
        tally.rows += hub.steps - rows
        tally.episodes += hub.episodes - episodes
        tally.ending += (hub.ticks - ticks) * (hub.episodes > episodes)

    @property
    def step_bytes(self) -> float:
        """Bytes of one recorded step in a slab."""
        sessions = _inner(self.services["actor"]).holdings.sessions.values()
        layout = next(session.layout for session in sessions if session.layout is not None)
        return float(layout.cell_bytes / (layout.num_decisions * layout.num_rows))

    @property
    def episode_limit(self) -> float:
        """Steps after which episodes are cut; 0: never."""
        limits = (self.resolved.recipe.env.time_limit, self.services["hub"].spec.time_limit)  # type: ignore[attr-defined]
        return float(min((limit for limit in limits if limit), default=0))

    @property
    def on_device(self) -> bool:
        """Whether updates run on an accelerator."""
        return bool(_inner(self.services["learner"]).trainer.device.type != "cpu")

    @property
    def _hub(self) -> Any:
        return self.services["hub"].counters  # type: ignore[attr-defined]

    def _counts(self) -> dict[str, int]:
        hub, actor = self._hub, _inner(self.services["actor"])
        learner = _inner(self.services["learner"])
        return {
            "ticks": hub.ticks, "rows": hub.steps, "episodes": hub.episodes,
            "chunks": actor.recorder.num_chunks, "updates": learner.trainer.counters.updates,
        }  # fmt: skip

    def _recorded(self, seconds: float) -> None:
        self._sample.record_s += seconds

    def _applied(self, seconds: float) -> None:
        self._sample.apply_s += seconds
        self._applied_s += seconds
        self._sample.applied += 1

    def _remove(self) -> None:
        for folder in (self.paths.runtime, self._folder):
            shutil.rmtree(folder, ignore_errors=True)


def _alone(resolved: Any, num_envs: int, num_slices: int, time_limit: int) -> Any:
    """``resolved`` for one hub and one actor.

    The feed stays that of the whole run, so that chunks and batches have their sizes.
    """
    sections: dict[str, dict[str, Any]] = {
        "env": {"num_envs": num_envs, "num_slices": num_slices, "hubs": 1},
        "actor": {"count": 1},
    }
    if time_limit:
        limit = min(time_limit, resolved.recipe.env.time_limit or time_limit)
        sections["env"]["time_limit"] = limit
    return quiet(resolved, sections)


def _inner(service: Service) -> Any:
    """What a service that had to await the environment's spec has become."""
    return service.service if isinstance(service, AwaitingSpec) else service


def _timed(owner: Any, name: str, tell: Callable[[float], None]) -> None:
    """Replace the method ``name`` of ``owner`` by one that tells how long it took."""
    method = getattr(owner, name)

    def timed(*arguments: Any, **named: Any) -> Any:
        began = time.thread_time()
        result = method(*arguments, **named)
        tell(time.thread_time() - began)
        return result

    setattr(owner, name, timed)


def _other_threads_s() -> float:
    return time.process_time() - time.thread_time()
