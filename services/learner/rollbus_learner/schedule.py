"""When things are due, and how the learner's time is spent. Clocks are passed in."""

from __future__ import annotations

from collections import deque
from typing import Protocol


class Counters(Protocol):
    """How far a run is."""

    env_steps: int
    updates: int


class Every:
    """Due at each multiple of ``every`` steps after ``start``; never if ``every`` is 0."""

    def __init__(self, every: int, start: int = 0) -> None:
        self.every = every
        self._next = (start // every + 1) * every if every else 0

    def due(self, steps: int) -> bool:
        """Whether a multiple was reached since the last time it was."""
        return bool(self.every) and steps >= self._next

    def done(self, steps: int) -> None:
        """It was done at ``steps``."""
        if self.every:
            self._next = (steps // self.every + 1) * self.every


class Due:
    """Due at multiples of steps or of updates, whichever comes."""

    def __init__(self, every_steps: int, every_updates: int, counters: Counters) -> None:
        self._steps = Every(every_steps, counters.env_steps)
        self._updates = Every(every_updates, counters.updates)

    def due(self, counters: Counters) -> bool:
        """Whether one of them was reached since the last time it was done."""
        return self._steps.due(counters.env_steps) or self._updates.due(counters.updates)

    def done(self, counters: Counters) -> None:
        """It was done now."""
        self._steps.done(counters.env_steps)
        self._updates.done(counters.updates)


class RecentReturn:
    """Mean training return over the episodes of the last updates in which any ended."""

    def __init__(self, num_updates: int = 10) -> None:
        self._parts: deque[tuple[float, float]] = deque(maxlen=num_updates)

    def add(self, mean: float, episodes: float) -> None:
        """``episodes`` ended with this mean."""
        self._parts.append((mean, episodes))

    @property
    def mean(self) -> float | None:
        num = sum(episodes for _, episodes in self._parts)
        return sum(mean * episodes for mean, episodes in self._parts) / num if num else None


class Shares:
    """Steps per second and shares of time, over the last ``window_s`` seconds.

    From the second update on those since the first: before it the services started.
    """

    def __init__(self, now: float, window_s: float = 5.0) -> None:
        self._window_s, self._busy_s, self._updates = window_s, 0.0, 0
        self._marks: deque[tuple[float, float, int]] = deque([(now, 0.0, 0)])

    def add(self, now: float, busy_s: float, steps: int) -> None:
        """``busy_s`` more seconds of work ended ``now``, and ``steps`` more steps were learned from."""
        self._busy_s += busy_s
        self._updates += steps > 0
        if steps and self._updates == 2:
            while self._marks[0][2] == 0:
                self._marks.popleft()
        self._marks.append((now, self._busy_s, self._marks[-1][2] + steps))

    def read(self, now: float) -> dict[str, float]:
        """steps_per_s (0 before there is one), busy, wait."""
        while len(self._marks) > 2 and self._marks[1][0] < now - self._window_s:
            self._marks.popleft()
        then, busy_s, steps = self._marks[0]
        duration = max(now - then, 1e-3)
        busy = min(1.0, (self._busy_s - busy_s) / duration)
        return {
            "steps_per_s": round((self._marks[-1][2] - steps) / duration, 1) if self._updates > 1 else 0.0,
            "busy": round(busy, 3),
            "wait": round(1.0 - busy, 3),
        }
