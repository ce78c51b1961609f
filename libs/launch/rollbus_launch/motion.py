"""Whether a run moves, and how fast, from what it says it has done."""

from __future__ import annotations

import statistics
from collections import deque

#: A run stands still after this long without a change, or after so many of its usual intervals.
STILL_S, STILL_INTERVALS = 5.0, 3


class Motion:
    """What is done, over the time of one display; what was done before it began is no motion."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None
        self._last: tuple[float, int] | None = None
        self._intervals: deque[float] = deque(maxlen=9)

    def note(self, now: float, done: int) -> None:
        """So much is done ``now``."""
        if self._first is None or self._last is None or done < self._last[1]:  # back to a checkpoint
            self._first = self._last = now, done
        elif done > self._last[1]:
            self._intervals.append(now - self._last[0])
            self._last = now, done

    @property
    def known(self) -> bool:
        """Whether it was ever said what is done."""
        return self._last is not None

    @property
    def begun(self) -> bool:
        """Whether anything has moved yet."""
        return self._first != self._last

    def rate(self, now: float) -> float | None:
        """Done per second since the display began; None while nothing has moved."""
        if self._first is None or self._last is None or not self.begun:
            return None
        return (self._last[1] - self._first[1]) / max(now - self._first[0], 1e-3)

    def still_s(self, now: float) -> float:
        """For how long nothing has moved; 0 while that is no longer than usual."""
        if self._last is None or not self.begun:
            return 0.0
        still = now - self._last[0]
        usual = statistics.median(self._intervals) if self._intervals else 0.0
        return still if still > max(STILL_S, STILL_INTERVALS * usual) else 0.0
