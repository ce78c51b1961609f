"""A service that can be built only once a hub has told the environment's spec."""

from __future__ import annotations

import time
from collections.abc import Callable

from rollbus_core.service import Service
from rollbus_wire.errors import DeadlineExceeded, PeerLost
from rollbus_wire.link import Link, Poller, drain
from rollbus_wire.messages import ListMembers, Members
from rollbus_wire.spec import EnvSpec

ASK_EVERY_S = 0.05


class AwaitingSpec(Service):
    """Asks the registry until a slice is offered, then becomes what ``build`` makes of its spec.

    It never waits, so a hub in the same process can start meanwhile. ``timeout_s`` 0: no limit.
    """

    def __init__(self, name: str, link: Link, build: Callable[[EnvSpec], Service], timeout_s: float) -> None:
        super().__init__(name)
        self._link, self._build, self._timeout_s = link, build, timeout_s
        self._inner: Service | None = None
        self._next_ask = 0.0
        self._started = time.monotonic()

    @property
    def service(self) -> Service | None:
        """What it has become; None while it waits."""
        return self._inner

    def start(self, poller: Poller) -> None:
        super().start(poller)
        poller.add(self._link)

    def poll(self) -> bool:
        if self._inner is not None:
            return self._inner.poll()
        now = time.monotonic()
        for envelope in drain(self._link):
            if isinstance(envelope.message, Members) and (spec := offered_spec(envelope.message)):
                self._become(self._build(spec))
                return True
        if self._timeout_s and now - self._started > self._timeout_s:
            raise DeadlineExceeded(
                f"{self.name}: no hub has offered a slice within {self._timeout_s:.0f} s; see the hub's "
                "log, or raise deploy.start_timeout_s"
            )
        if now >= self._next_ask:
            self._next_ask = now + ASK_EVERY_S
            try:
                self._link.send(ListMembers())
            except PeerLost:
                pass
        return False

    def _become(self, service: Service) -> None:
        self._inner = service
        self.poller.remove(self._link)
        self._link.close()
        service.start(self.poller)
        self.member = service.member

    def wake_in_s(self) -> float:
        return self._inner.wake_in_s() if self._inner else ASK_EVERY_S

    @property
    def ready(self) -> bool:
        return self._inner is not None and self._inner.ready

    @property
    def stop_requested(self) -> bool:
        return self._inner is not None and self._inner.stop_requested

    @property
    def finished(self) -> bool:
        return self._inner.finished if self._inner else self.state == "stopped"

    def drain(self) -> None:
        if self._inner is not None:
            self._inner.drain()
        else:
            self.state = "stopped"

    def stop(self) -> None:
        if self._inner is not None:
            self._inner.stop()
        else:
            self._link.close()


def offered_spec(members: Members) -> EnvSpec | None:
    """The spec of the first slice that a hub offers."""
    specs = [s["spec"] for m in members.members for s in m.get("slices") or () if s.get("spec")]
    return EnvSpec.from_data(specs[0]) if specs else None
