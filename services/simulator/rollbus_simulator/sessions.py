"""One peer's session with the hub, and the requests it has not answered yet."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Protocol

import numpy as np

from rollbus_simulator.failures import NonFinite
from rollbus_wire.errors import PeerLost
from rollbus_wire.link import Link
from rollbus_wire.messages import Message, Outcome
from rollbus_wire.spec import EnvSpec


class Asker(Protocol):
    """Who asks a peer for something: a slice."""

    def outcome(self, request: Request, message: Outcome) -> NonFinite | None:
        """The answer; what is not finite in it. Raises `SpecError` if it is not what the spec states."""
        ...

    def failed(self, request: Request) -> None:
        """The peer lives, but the environment could not do it."""
        ...

    def where(self, request: Request) -> str:
        """Rows of the peer and steps of their episodes, for a text."""
        ...


@dataclass(slots=True)
class Request:
    """One `Reset`, `Step` or `Observe` under way."""

    #: "reset" | "step" | "observe"
    kind: str
    asker: Asker
    #: Places in the slice, and the peer's own rows for them; int32 [R] both.
    places: np.ndarray
    peer_rows: np.ndarray
    observed: bool = True
    deadline: float = 0.0

    def part(self, keep: np.ndarray) -> Request:
        """The same of some rows; ``keep`` is bool [R]."""
        return Request(
            self.kind, self.asker, self.places[keep], self.peer_rows[keep], self.observed, self.deadline
        )


class Session:
    """One peer: its address, its free rows and its open requests in the order they were asked."""

    def __init__(
        self, index: int, link: Link, address: bytes, name: str, num_rows: int, timeout_s: float,
        serve: Callable[[Message], Message] | None = None, row_tasks: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        self.index, self.link, self.address, self.name = index, link, address, name
        self.free = list(range(num_rows))
        #: Index of the task that each of its rows runs.
        self.row_tasks = np.zeros(num_rows, np.int32) if row_tasks is None else row_tasks
        self.open: dict[int, Request] = {}
        self.timeout_s = timeout_s
        #: Answers requests where the peer lives in this process, else None.
        self.serve = serve
        #: What it has not been asked yet.
        self.asked: deque[tuple[Message, Request]] = deque()
        self.heard = self.pinged = time.monotonic()
        #: Why the session cannot go on; empty: it can.
        self.broken = ""
        #: Failures of the environment without a success between them.
        self.failures = 0
        #: There were too many of them.
        self.given_up = False
        #: It lives and does not answer in time.
        self.hangs = False

    def ask(self, message: Message, request: Request) -> None:
        """Send; a peer that is gone is noticed here and dealt with at the next turn."""
        if self.serve is not None:
            self.asked.append((message, request))
        elif self.tell(message):
            request.deadline = time.monotonic() + self.timeout_s
            self.open[self._last] = request

    def tell(self, message: Message, re: int = 0) -> bool:
        """Send without awaiting an answer; whether it could be sent."""
        if self.broken:
            return False
        try:
            self._last = self.link.send(message, to=self.address, re=re)
        except PeerLost as error:
            self.broken = str(error)
            return False
        return True

    def overdue(self, now: float) -> bool:
        """Whether the oldest open request is past its deadline."""
        return bool(self.open) and next(iter(self.open.values())).deadline < now


def spec_difference(mine: EnvSpec, other: EnvSpec) -> str:
    """Where two specs differ, with both values; empty if they are equal."""
    return _difference("", mine, other)


def _difference(path: str, mine: Any, other: Any) -> str:
    if is_dataclass(mine) and type(mine) is type(other):
        pairs = [(f.name, getattr(mine, f.name), getattr(other, f.name)) for f in fields(mine)]
    elif isinstance(mine, dict) and isinstance(other, dict) and mine.keys() == other.keys():
        pairs = [(key, mine[key], other[key]) for key in mine]
    else:
        same = mine == other or (
            isinstance(mine, list | tuple) and isinstance(other, list | tuple) and [*mine] == [*other]
        )
        return "" if same else f"{path} is {other!r}, the hub has {mine!r}"
    for name, a, b in pairs:
        found = _difference(f"{path}.{name}" if path else str(name), a, b)
        if found:
            return found
    return ""
