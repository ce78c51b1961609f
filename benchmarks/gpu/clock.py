"""Timing on any device: calls in a row, the device waited for before and after."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rollbus_accel.backends.base import Backend

Call = Callable[[], object]


@dataclass(frozen=True)
class Clock:
    """Medians of ``repeats`` stretches of ``stretch_s`` seconds; ``quick``: less, for slow devices."""

    backend: Backend
    quick: bool

    @property
    def device(self) -> str:
        """torch's name of the device."""
        return "cpu" if self.backend.device == "cpu" else self.backend.device_name(0)

    @property
    def stretch_s(self) -> float:
        """Long enough that waiting for the device does not count."""
        return 0.01 if self.quick else 0.05

    @property
    def repeats(self) -> int:
        """Stretches per measurement."""
        return 3 if self.quick else 5

    def seconds(self, calls: Mapping[str, Call]) -> dict[str, float]:
        """Median seconds of one call of each; the calls take turns, so drift hits all alike."""
        counts = {}
        for name, call in calls.items():
            self._stretch(call, 2)
            counts[name] = max(1, round(self.stretch_s / self._stretch(call, 1)))
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(self.repeats):
            for name, call in calls.items():
                times[name].append(self._stretch(call, counts[name]) / counts[name])
        return {name: statistics.median(values) for name, values in times.items()}

    def _stretch(self, call: Call, count: int) -> float:
        self.backend.synchronise()
        start = time.perf_counter()
        for _ in range(count):
            call()
        self.backend.synchronise()
        return time.perf_counter() - start
