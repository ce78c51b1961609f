"""The numbers of a run over time: metrics.jsonl, TensorBoard, and the summary of it all.

Every metric and its formula: docs/metrics.md.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from rollbus_core.lines import LineFile
from rollbus_core.paths import RunPaths
from rollbus_core.tensorboard import EventFiles

#: Updates whose returns make up ``mean_return`` of a summary.
LAST_UPDATES = 10


class MetricsWriter:
    """Appends one line per update and hands the numbers on to TensorBoard, which never delays a caller."""

    def __init__(
        self, paths: RunPaths, *, on_missing: Callable[[str], None] = lambda _: None,
        tensorboard: bool = True, after: Collection[LineFile] = (),
    ) -> None:  # fmt: skip
        """``on_missing`` is told once if TensorBoard is not installed; ``after``: see `LineFile`."""
        self._lines = LineFile(paths.metrics, after=after)
        self._events = EventFiles(paths.tensorboard, on_missing) if tensorboard else None

    def write(self, row: Mapping[str, Any]) -> None:
        """One update; needs ``env_steps``. What is not finite is written as null."""
        clean = {name: _finite(value) for name, value in {"time": time.time(), **row}.items()}
        self._lines.put(clean)
        if self._events is not None:
            self._events.put(clean)

    def close(self) -> None:
        """Write out what is left, within a bounded time."""
        self._lines.close()
        if self._events is not None:
            self._events.close()


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What summary.json holds of the rows of metrics.jsonl; zeros for none.

    ``env_steps_per_s`` is between the first and the last update of each start of the learner, so
    that start-up and the time between two starts do not count.
    """
    if not rows:
        return {"env_steps": 0, "env_steps_per_s": 0.0, "updates": 0, "training_s": 0.0, "mean_return": None,
                "lag": None, "lag_max": None}  # fmt: skip
    num_steps, duration_s = 0.0, 0.0
    for part in _starts(rows):
        num_steps += part[-1]["env_steps"] - part[0]["env_steps"]
        duration_s += part[-1]["time"] - part[0]["time"]
    last, lags = rows[-1], [row["lag_mean"] for row in rows if row.get("lag_mean") is not None]
    return {
        "env_steps": last["env_steps"],
        "env_steps_per_s": num_steps / duration_s if duration_s else 0.0,
        "updates": last["update"],
        "training_s": duration_s,
        "mean_return": _recent_return(rows),
        "lag": statistics.fmean(lags) if lags else None,
        "lag_max": max((row["lag_max"] for row in rows if row.get("lag_max") is not None), default=None),
    }


def _starts(rows: Iterable[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Rows by start of the learner: each has a lineage of its own."""
    parts: dict[Any, list[Mapping[str, Any]]] = {}
    for row in rows:
        parts.setdefault(str(row.get("version", "")).partition(".")[0], []).append(row)
    return list(parts.values())


def _recent_return(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Mean over the episodes of the last updates in which any ended."""
    ended = [row for row in rows if row.get("episodes")][-LAST_UPDATES:]
    num = sum(row["episodes"] for row in ended)
    return sum(row["return_mean"] * row["episodes"] for row in ended) / num if num else None


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
