"""A service that can be built only once a hub has told the environment's spec."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rollbus_core.service import BROKER, Service
from rollbus_wire import shm
from rollbus_wire.errors import DeadlineExceeded, PeerLost
from rollbus_wire.link import Link
from rollbus_wire.messages import ListMembers, Members
from rollbus_wire.polling import Poller, drain
from rollbus_wire.spec import EnvSpec

ASK_EVERY_S = 0.05


class Found(NamedTuple):
    """What the registry told."""

    spec: EnvSpec
    #: Whether this process sees the memory in which the broker keeps slabs and the learner weights.
    same_memory: bool


class AwaitingSpec(Service):
    """Asks the registry until a slice is offered, then becomes what ``build`` makes of its spec.

    It never waits, so a hub in the same process can start meanwhile. ``timeout_s`` 0: no limit. ``memory``:
    the folder in which it proves what memory it sees.
    """

    def __init__(
        self, name: str, link: Link, build: Callable[[Found], Service], timeout_s: float, memory: Path
    ) -> None:
        super().__init__(name)
        self._memory, self._nonce = memory, ""
        self._link, self._build, self._timeout_s = link, build, timeout_s
        self._inner: Service | None = None
        self._next_ask = 0.0
        self._answered = False
        self._started = time.monotonic()

    @property
    def service(self) -> Service | None:
        """What it has become; None while it waits."""
        return self._inner

    def start(self, poller: Poller) -> None:
        super().start(poller)
        poller.add(self._link)
        self._nonce = shm.write_nonce(self._memory)

    def poll(self) -> bool:
        if self._inner is not None:
            return self._inner.poll()
        now = time.monotonic()
        for envelope in drain(self._link):
            message = envelope.message
            self._answered |= isinstance(message, Members)
            if isinstance(message, Members) and (spec := offered_spec(message)):
                self._become(Found(spec, message.same_memory))
                return True
        if self._timeout_s and now - self._started > self._timeout_s:
            raise DeadlineExceeded(
                f"{self.name}: no hub has offered a slice within {self._timeout_s:.0f} s; see the hub's "
                "log, or raise deploy.start_timeout_s"
            )
        if now >= self._next_ask:
            self._next_ask = now + ASK_EVERY_S
            try:
                self._link.send(ListMembers(self._nonce))
            except PeerLost:
                pass
        return False

    def _become(self, found: Found) -> None:
        self._forget()
        service = self._inner = self._build(found)
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
    def awaits(self) -> str:
        if self._inner is not None:
            return self._inner.awaits
        return "a hub that has environments" if self._answered else BROKER

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
            self._forget()
            self._link.close()

    def _forget(self) -> None:
        if self._nonce:
            shm.remove_nonce(self._nonce, self._memory)
            self._nonce = ""


def offered_spec(members: Members) -> EnvSpec | None:
    """The spec of the first slice that a hub offers."""
    specs = [s["spec"] for m in members.members for s in m.get("slices") or () if s.get("spec")]
    return EnvSpec.from_data(specs[0]) if specs else None
