"""Which slices are decided together, and their rows as one batch. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rollbus_actor.session import Session
from rollbus_core.pace import Pace


class Batch(NamedTuple):
    """Inputs of one forward pass over the rows of several sessions, one after the other."""

    sessions: list[Session]
    #: Rows of each session.
    sizes: list[int]
    obs: Mapping[str, np.ndarray]
    state: np.ndarray | None
    episode: np.ndarray
    step: np.ndarray


class Batcher:
    """Sessions that wait for a forward pass, oldest first."""

    def __init__(self, max_batch: int, wait_s: float, *, alone: bool = False) -> None:
        """``alone``: each slice has a pass of its own, so that its results do not depend on others."""
        self.wait_s, self.alone = wait_s, alone
        self._pace = Pace(max_batch)
        self._waiting: dict[Session, float] = {}
        self.num_rows = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, session: Session, now: float) -> None:
        """The rows of the session's tick wait from ``now``."""
        assert session.tick is not None and session not in self._waiting
        self._waiting[session] = now
        self.num_rows += session.tick.rows.size

    def remove(self, session: Session) -> None:
        """The session does not wait any more, if it did."""
        if self._waiting.pop(session, None) is not None:
            assert session.tick is not None
            self.num_rows -= session.tick.rows.size

    def due_in_s(self, now: float) -> float:
        """Seconds until a pass should run if nothing else arrives; infinite if nobody waits."""
        if not self._waiting:
            return float("inf")
        if self.alone or self.num_rows >= self._pace.limit:
            return 0.0
        return max(0.0, next(iter(self._waiting.values())) + self.wait_s - now)

    @property
    def next_rows(self) -> int:
        """Rows of the session that has waited longest; 0 if none waits."""
        session = next(iter(self._waiting), None)
        return 0 if session is None or session.tick is None else session.tick.rows.size

    def take(self, room: int | None = None) -> Batch:
        """The oldest sessions, up to ``room`` rows; without it up to ``max_batch``, or what passes are fast
        with.

        One session is never divided.
        """
        limit = self._pace.limit if room is None else room
        if len(self._waiting) == 1:
            session, _ = self._waiting.popitem()
            self.num_rows = 0
            return join([session])
        chosen: list[Session] = []
        rows = 0
        for session in list(self._waiting):
            assert session.tick is not None
            rows += session.tick.rows.size
            if chosen and (self.alone or rows > limit):
                break
            chosen.append(session)
            self.remove(session)
        return join(chosen)

    def took(self, num_rows: int, seconds: float) -> None:
        """A pass over ``num_rows`` rows took ``seconds``."""
        self._pace.took(num_rows, seconds)


def join(sessions: list[Session]) -> Batch:
    """The rows of ``sessions`` as one batch."""
    if len(sessions) == 1:
        tick = sessions[0].tick
        assert tick is not None
        return Batch(sessions, [tick.rows.size], *sessions[0].inputs(), tick.episode, tick.step)
    inputs = [session.inputs() for session in sessions]
    ticks = [session.tick for session in sessions if session.tick is not None]
    sizes = [tick.rows.size for tick in ticks]
    joined = {key: np.concatenate([obs[key] for obs, _ in inputs]) for key in inputs[0][0]}
    states = [state for _, state in inputs if state is not None]
    return Batch(
        sessions, sizes, joined, _joined(states) if states else None,
        _joined([tick.episode for tick in ticks]), _joined([tick.step for tick in ticks]),
    )  # fmt: skip


def _joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(arrays)
