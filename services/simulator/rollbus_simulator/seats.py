"""Which peer serves which row of a slice, and asking those peers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rollbus_simulator.sessions import Asker, Request, Session
from rollbus_wire.messages import Observe, Reset, Step


class Seats:
    """One seat per row of a slice: a session and the peer's own row, or nobody.

    ``executed``: actions [R, ...] as the peers' environments take them.
    """

    def __init__(self, num_rows: int, executed: Callable[[np.ndarray], np.ndarray]) -> None:
        self._executed = executed
        self.sessions: list[Session | None] = [None] * num_rows
        self._peer_rows = np.full(num_rows, -1, np.int32)
        #: Index of the task that each row runs, int32 [N]; -1: nobody serves it.
        self.tasks = np.full(num_rows, -1, np.int32)
        #: The session that serves all rows, if there is one.
        self._whole: Session | None = None

    @property
    def empty(self) -> list[int]:
        """Places without a peer."""
        return [place for place, session in enumerate(self.sessions) if session is None]

    def of(self, session: Session) -> list[int]:
        """The places that ``session`` serves."""
        return [place for place, other in enumerate(self.sessions) if other is session]

    def fill(self, places: list[int], session: Session, peer_rows: list[int]) -> None:
        """``session`` serves ``places`` with its own ``peer_rows``."""
        for place, row in zip(places, peer_rows, strict=True):
            self.sessions[place] = session
            self._peer_rows[place] = row
            self.tasks[place] = session.row_tasks[row]
        self._look()

    def vacate(self, places: list[int]) -> None:
        """Nobody serves ``places`` any more."""
        for place in places:
            self.sessions[place] = None
        self._look()

    def ask(
        self, asker: Asker, kind: str, places: np.ndarray, payload: np.ndarray | None = None,
        observe: bool = True, options: list[dict[str, Any]] | None = None,
    ) -> None:  # fmt: skip
        """Ask the peers of ``places`` [R]; ``payload`` [R, ...] is actions, or seeds with ``options``."""
        if kind == "step" and payload is not None:
            payload = self._executed(payload)
        if self._whole is not None:
            # A copy: the message gives its arrays away.
            rows = self._peer_rows[places]
            _ask(self._whole, Request(kind, asker, places, rows, observe), payload, options)
            return
        groups: dict[int, tuple[Session, list[int]]] = {}
        for j, place in enumerate(places):
            session = self.sessions[place]
            assert session is not None, "a row without a peer is never asked"
            groups.setdefault(session.index, (session, []))[1].append(j)
        for session, chosen in groups.values():
            part = places[chosen]
            request = Request(kind, asker, part, self._peer_rows[part], observe)
            mine = None if options is None else [options[j] for j in chosen]
            _ask(session, request, None if payload is None else payload[chosen], mine)

    def _look(self) -> None:
        first = self.sessions[0]
        self._whole = first if all(session is first for session in self.sessions) else None


def _ask(
    session: Session, request: Request, payload: np.ndarray | None, options: list[dict[str, Any]] | None
) -> None:
    rows = request.peer_rows
    message: Reset | Step | Observe
    if payload is None:
        message = Observe(rows)
    elif request.kind == "reset":
        message = Reset(rows, payload, options or [])
    else:
        message = Step(rows, payload, request.observed)
    session.ask(message, request)
