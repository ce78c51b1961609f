"""Simulated time: cores shared by busy processes, and events that happen later.

Processor sharing: k busy jobs on c cores run at min(1, c / k) each, further divided by ``slowdown`` once at
least two run side by side (caches and memory are shared, too).
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

#: Below this a job is done: float error, not work.
EPSILON_S = 1e-12

Then = Callable[[], None]


class Cores:
    """The cores of one host and the jobs on them."""

    def __init__(self, num_cores: int, slowdown: float = 1.0) -> None:
        self.num_cores, self.slowdown = num_cores, slowdown
        #: Job -> [work left, what follows, whose it is].
        self.jobs: dict[int, tuple[float, Then, str]] = {}
        self._numbers = itertools.count()
        #: Core seconds that were used.
        self.used_s = 0.0
        #: The same by user.
        self.used_by: dict[str, float] = {}

    @property
    def rate(self) -> float:
        """Work per second of each job now."""
        num = len(self.jobs)
        if num <= 1 or self.num_cores == 1:
            return min(1.0, self.num_cores / max(1, num))
        side_by_side = min(num, self.num_cores) - 1
        share = side_by_side / max(1, self.num_cores - 1)
        return min(1.0, self.num_cores / num) / (1.0 + (self.slowdown - 1.0) * share)

    @property
    def idle(self) -> bool:
        """Whether a core has nothing to do."""
        return len(self.jobs) < self.num_cores

    def run(self, work_s: float, then: Then, user: str = "") -> None:
        """``then`` follows after ``work_s`` seconds of work for ``user``."""
        self.jobs[next(self._numbers)] = (work_s, then, user)

    def next_in_s(self) -> float:
        """Until the first job is done, if none comes or goes."""
        if not self.jobs:
            return float("inf")
        return min(job[0] for job in self.jobs.values()) / self.rate

    def advance(self, duration_s: float) -> list[Then]:
        """Work for ``duration_s``; what follows the jobs that are done."""
        if not self.jobs:
            return []
        done_s = duration_s * self.rate
        used_s = duration_s * min(1.0, self.num_cores / len(self.jobs))
        self.used_s += used_s * len(self.jobs)
        over, left = [], {}
        for number, (work_s, then, user) in self.jobs.items():
            self.used_by[user] = self.used_by.get(user, 0.0) + used_s
            if work_s - done_s <= EPSILON_S:
                over.append(then)
            else:
                left[number] = (work_s - done_s, then, user)
        self.jobs = left
        return over


class Timeline:
    """All hosts and what happens when. Deterministic: ties go by order of entry."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.hosts: list[Cores] = []
        self._later: list[tuple[float, int, Then]] = []
        self._numbers = itertools.count()
        #: Jobs and events that are over.
        self.num_events = 0

    def add(self, cores: Cores) -> Cores:
        """A host."""
        self.hosts.append(cores)
        return cores

    def after(self, delay_s: float, then: Then) -> None:
        """``then`` happens in ``delay_s`` and takes no core."""
        heapq.heappush(self._later, (self.now_s + delay_s, next(self._numbers), then))

    def step(self) -> bool:
        """To the next thing that happens; False if nothing ever will."""
        event_s = self._later[0][0] - self.now_s if self._later else float("inf")
        duration_s = min([event_s, *(host.next_in_s() for host in self.hosts)])
        if duration_s == float("inf"):
            return False
        duration_s = max(0.0, duration_s)
        over = [then for host in self.hosts for then in host.advance(duration_s)]
        self.now_s += duration_s
        while self._later and self._later[0][0] <= self.now_s + EPSILON_S:
            over.append(heapq.heappop(self._later)[2])
        self.num_events += len(over)
        for then in over:
            then()
        return True
