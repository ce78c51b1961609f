"""Processes that hang: they live and say nothing any more, however long one waits."""

from __future__ import annotations

from collections.abc import Iterable

#: A turn of the launcher that took longer was a pause of its own, or of the whole machine.
MAX_TURN_S = 1.0


class Patience:
    """How long the broker and lost members have been silent while the launcher itself ran.

    ``limit_s``: what is silent for longer hangs; 0: nothing ever does. A broker has ``start_s`` more before
    its first answer.
    """

    def __init__(self, limit_s: float, start_s: float, now: float) -> None:
        self._limit_s, self._start_s, self._at = limit_s, start_s, now
        #: Since the broker's last answer; below 0 while it may still be starting.
        self.broker_s = -start_s
        self._lost_s: dict[str, float] = {}

    def turn(self, now: float) -> None:
        """Time goes on."""
        elapsed, self._at = min(now - self._at, MAX_TURN_S), now
        self.broker_s += elapsed
        for name in self._lost_s:
            self._lost_s[name] += elapsed

    def heard(self, lost: Iterable[str]) -> None:
        """The broker answered, and these members are ``lost``."""
        self.broker_s = 0.0
        self._lost_s = {name: self._lost_s.get(name, 0.0) for name in lost}

    def broker_again(self) -> None:
        """Another broker begins."""
        self.broker_s = -self._start_s

    @property
    def broker_hangs(self) -> bool:
        return 0 < self._limit_s < self.broker_s

    @property
    def hanging(self) -> list[str]:
        """Members that have been lost for too long, each of them once."""
        found = [name for name, lost_s in self._lost_s.items() if 0 < self._limit_s < lost_s]
        for name in found:
            self._lost_s[name] = 0.0
        return found
