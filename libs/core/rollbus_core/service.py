"""What a service is, and the loop that runs one or several of them in a process.

A service has no module globals, signal handlers or thread settings. It is start, ready, run,
drain, stop: `start` opens its links, `poll` does what can be done without waiting, `drain` asks it
to finish, `stop` closes. The host waits on all links of all its services at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rollbus_core.member import Member
from rollbus_wire.polling import Poller

#: What a service that has not joined the registry yet waits for.
BROKER = "the broker"


class Service:
    """Base of hub, actor, broker, learner and evaluator."""

    role = ""

    def __init__(self, name: str) -> None:
        self.name = name
        self.poller = Poller()
        #: start | ready | run | drain | stopped
        self.state = "start"
        #: Set by services that belong to a registry.
        self.member: Member | None = None

    def start(self, poller: Poller) -> None:
        """Open links and add them to ``poller``, which the host waits on."""
        self.poller = poller

    def poll(self) -> bool:
        """Do what can be done now; whether anything was done. Never waits."""
        raise NotImplementedError

    def wake_in_s(self) -> float:
        """Seconds after which `poll` must run even if nothing arrives."""
        return 0.1

    @property
    def ready(self) -> bool:
        """Whether the service can do its work."""
        return self.state in ("ready", "run", "drain")

    @property
    def awaits(self) -> str:
        """Without whom it cannot begin, for people; "": it waits for nobody."""
        return BROKER if self.member is not None and self.member.registered is None else ""

    @property
    def stop_requested(self) -> bool:
        """Whether the registry was asked to stop everything."""
        return self.member is not None and self.member.stop_requested

    @property
    def finished(self) -> bool:
        """Whether the host may stop it."""
        return self.state == "stopped"

    def drain(self) -> None:
        """Finish what is begun, then become `finished`."""
        self.state = "stopped"

    def stop(self) -> None:
        """Close links and give everything back. Called once, also after a failure."""


def run(
    services: Sequence[Service],
    *,
    should_stop: Callable[[], bool] = lambda: False,
    on_ready: Callable[[], None] = lambda: None,
    on_turn: Callable[[], None] = lambda: None,
    drain_s: float = 5.0,
) -> None:
    """Run ``services`` until all are finished, or ``should_stop`` and they have drained."""
    poller = Poller()
    started: list[Service] = []
    announced = False
    deadline = 0.0
    try:
        for service in services:
            started.append(service)
            service.start(poller)
        while not all(s.finished for s in services):
            busy, began = False, time.monotonic()
            for service in services:
                if not service.finished:
                    busy |= service.poll()
            if not announced and all(s.ready for s in services):
                announced = True
                on_ready()
            on_turn()
            _note_lag(services, time.monotonic() - began)
            if not deadline and (should_stop() or any(s.stop_requested for s in services)):
                deadline = time.monotonic() + drain_s
                for service in services:
                    service.drain()
            elif deadline and time.monotonic() > deadline:
                break
            if not busy:
                poller.wait(min(s.wake_in_s() for s in services))
    finally:
        for service in reversed(started):
            service.stop()


def _note_lag(services: Sequence[Service], turn_s: float) -> None:
    """A turn of the loop took so long; each service tells the longest with its heartbeat."""
    for service in services:
        if service.member is not None and turn_s > service.member.loop_lag_s:
            service.member.loop_lag_s = turn_s
