"""What a hub counts, and the numbers it reports with each heartbeat."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from rollbus_simulator.episodes import Ended
from rollbus_wire.spec import EnvSpec

#: Episodes over which the mean return and length are taken.
RECENT_EPISODES = 100
#: Shortest span over which a rate is taken.
WINDOW_S = 1.0


@dataclass
class Counters:
    """Totals since the hub started."""

    #: Environment steps whose outcome arrived.
    steps: int = 0
    episodes: int = 0
    ticks: int = 0
    #: Ticks sent again because their holder heard nothing.
    repeated_ticks: int = 0
    #: Episodes cut because a peer, an outcome or a finite number was lost.
    interrupted: int = 0
    #: Of those, the ones the environment itself failed in, since an episode was finished.
    failed_in_a_row: int = 0
    #: Acts under an older fence, acts for rows that wait for none, acts that break the spec.
    stale_acts: int = 0
    duplicate_acts: int = 0
    bad_acts: int = 0
    #: Outcomes of decisions of an older fence, one per row.
    straddled: int = 0
    #: Outcomes that nobody awaits any more.
    late_outcomes: int = 0
    #: Rows with a reward or an observation that is not finite.
    non_finite: int = 0
    peers_lost: int = 0
    #: Seconds spent working.
    busy_s: float = 0.0
    returns: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_EPISODES))
    lengths: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT_EPISODES))

    #: Task -> return, length and success of its last episodes, where there are tasks.
    tasks: dict[str, deque[tuple[float, int, bool | None]]] = field(default_factory=dict)

    def ended(self, episode: Ended, spec: EnvSpec) -> None:
        """An episode was finished."""
        self.episodes += 1
        self.failed_in_a_row = 0
        self.returns.append(episode.ret)
        self.lengths.append(episode.length)
        if spec.tasks:
            name = spec.tasks[episode.task].name
            of_task = self.tasks.setdefault(name, deque(maxlen=RECENT_EPISODES))
            of_task.append((episode.ret, episode.length, episode.success(spec.success)))

    def numbers(self) -> dict[str, Any]:
        """All counts, and means over the last `RECENT_EPISODES` episodes (None before the first).

        With tasks also of each: return_mean/<task>, length_mean/<task>, success_rate/<task>.
        """
        counts: dict[str, Any] = {
            key: value for key, value in self.__dict__.items() if isinstance(value, int | float)
        }
        num = len(self.returns)
        counts["return_mean"] = sum(self.returns) / num if num else None
        counts["length_mean"] = sum(self.lengths) / num if num else None
        for task, last in self.tasks.items():
            counts |= {f"{name}/{task}": value for name, value in _means(last).items()}
        return counts


def _means(episodes: Iterable[tuple[float, int, bool | None]]) -> dict[str, float]:
    """Means over ``episodes``; success where it is reported."""
    returns, lengths, flags = zip(*episodes, strict=True)
    found = {"return_mean": fmean(returns), "length_mean": fmean(lengths)}
    known = [flag for flag in flags if flag is not None]
    return found | ({"success_rate": fmean(known)} if known else {})


class Rates:
    """Steps per second and the share of time spent working, since they were last asked for."""

    def __init__(self, counters: Counters, clock: Callable[[], float] = time.monotonic) -> None:
        self._counters, self._clock = counters, clock
        self._since, self._steps, self._busy_s = clock(), 0, 0.0
        self._last = {"steps_per_s": 0.0, "busy": 0.0}

    def numbers(self) -> dict[str, float]:
        """``steps_per_s`` and ``busy`` in [0, 1] over the last span of at least `WINDOW_S`."""
        now = self._clock()
        span = now - self._since
        if span >= WINDOW_S:
            c = self._counters
            self._last = {
                "steps_per_s": (c.steps - self._steps) / span,
                "busy": min(1.0, (c.busy_s - self._busy_s) / span),
            }
            self._since, self._steps, self._busy_s = now, c.steps, c.busy_s
        return self._last
