"""A service's membership in the registry: register, heartbeat, rejoin.

Heartbeats are sent by the service's own loop, so that one proves that the loop turns and not only
that a thread does. Before a long stage the service names it with its deadline.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from typing import Any

from rollbus_wire.errors import PeerLost
from rollbus_wire.link import Envelope, Link
from rollbus_wire.messages import (
    PROTOCOL,
    Command,
    Fault,
    Heartbeat,
    Leave,
    Message,
    Pong,
    Register,
    Registered,
    fields_hash,
)
from rollbus_wire.polling import drain

DEFAULT_STAGE_DEADLINE_S = 2.0


class Member:
    """One member. Call `poll` in every turn of the loop."""

    def __init__(
        self,
        link: Link,
        role: str,
        name: str,
        *,
        slices: list[dict[str, Any]] | None = None,
        stats: Callable[[], dict[str, Any]] = dict,
        state: Callable[[], str] = lambda: "run",
        on_registered: Callable[[Registered], None] = lambda _: None,
    ) -> None:
        self.link, self.role, self.name = link, role, name
        self.slices = slices or []
        self._stats, self._state, self._on_registered = stats, state, on_registered
        self.registered: Registered | None = None
        #: What went wrong last while the service lives on; the first one is told at once.
        self.failure = ""
        self._told_failure = ""
        #: The longest turn of the process's loop since the last heartbeat: so long nobody was heard.
        self.loop_lag_s = 0.0
        #: Somebody asked all services to stop (`rollbus stop`).
        self.stop_requested = False
        self._stage, self._since = "start", time.monotonic()
        self._deadline_s = 60.0
        self._next = 0.0

    def stage(self, name: str, deadline_s: float = DEFAULT_STAGE_DEADLINE_S) -> None:
        """Enter a stage. A stage that may block for long is announced at once."""
        if name == self._stage and deadline_s == self._deadline_s:
            return
        self._stage, self._since, self._deadline_s = name, time.monotonic(), deadline_s
        if deadline_s > DEFAULT_STAGE_DEADLINE_S:
            self._next = 0.0
            self._beat(time.monotonic())

    @property
    def current_stage(self) -> str:
        """The stage that was named last."""
        return self._stage

    def poll(self) -> list[Envelope]:
        """Send what is due; return the messages that are not about membership."""
        others = []
        for envelope in drain(self.link):
            message = envelope.message
            if isinstance(message, Registered):
                # The first heartbeat says what this member is and holds: at once.
                self.registered, self._next = message, 0.0
                self._on_registered(message)
            elif isinstance(message, Fault) and message.code == "rejoin":
                self.registered, self._next = None, 0.0
            elif isinstance(message, Fault) and message.code == "superseded":
                raise PeerLost(f"{self.role} {self.name}: {message.text}")
            elif isinstance(message, Command) and message.name == "stop":
                self.stop_requested = True
            elif not isinstance(message, Pong):
                others.append(envelope)
        self.link.keep_alive()
        self._beat(time.monotonic())
        return others

    def send(self, message: Message) -> None:
        """Tell the registry; a broker that is away gets it when it is back."""
        try:
            self.link.send(message)
        except PeerLost:
            pass

    def leave(self, reason: str) -> None:
        """End the membership in order."""
        self.send(Leave(reason=reason))

    def _beat(self, now: float) -> None:
        first_failure = bool(self.failure) and not self._told_failure
        if now < self._next and not first_failure:
            return
        if self.registered is None:
            self._next = now + 1.0
            self.send(
                Register(
                    role=self.role, name=self.name, producer=self.link.sender, pid=os.getpid(),
                    host=socket.gethostname(), protocol=list(PROTOCOL), fields_hash=fields_hash(),
                    slices=self.slices,
                )
            )  # fmt: skip
            return
        self._next = now + self.registered.heartbeat_s
        self._told_failure = self.failure
        self.send(
            Heartbeat(
                stage=self._stage, since_s=now - self._since, deadline_s=self._deadline_s,
                state=self._state(), failure=self.failure,
                stats={**self._stats(), "loop_lag_s": self.loop_lag_s},
            )
        )  # fmt: skip
        self.loop_lag_s = 0.0
