"""When a process that ended may start again: the only place that counts restarts."""

from __future__ import annotations

from collections import deque

WINDOW_S = 600.0
#: The wait before a start doubles with each life that was shorter than `STEADY_S`.
FIRST_BACKOFF_S, LAST_BACKOFF_S, STEADY_S = 0.1, 10.0, 10.0


class RestartBudget:
    """At most ``limit`` restarts within `WINDOW_S`. Pure: times are arguments."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._restarts: deque[float] = deque()
        self._started, self._short_lives = 0.0, 0

    @property
    def num_restarts(self) -> int:
        """Counted ones within the window that ended with the last restart."""
        return len(self._restarts)

    def started(self, now: float) -> None:
        """The process starts."""
        self._started = now

    def ended(self, now: float, *, blameless: bool = False) -> float | None:
        """Seconds to wait before the next start; None if there may be none.

        ``blameless``: it found no room on disk or in memory; such an end is not counted.
        """
        while self._restarts and now - self._restarts[0] > WINDOW_S:
            self._restarts.popleft()
        if not blameless:
            if len(self._restarts) >= self.limit:
                return None
            self._restarts.append(now)
        self._short_lives = self._short_lives + 1 if now - self._started < STEADY_S else 0
        return min(LAST_BACKOFF_S, FIRST_BACKOFF_S * 2.0**self._short_lives)
