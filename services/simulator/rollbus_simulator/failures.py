"""Failures of environments: what they say, how often they are logged, when they end the hub."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

#: The same failure is logged again after this long, with how often it came meanwhile.
REPEAT_S = 30.0
#: Kinds of failures that are remembered; the one logged longest ago is forgotten first.
MAX_KINDS = 64
#: Episodes of a hub that may fail without one that is finished between them.
MIN_FAILED_EPISODES, FAILED_EPISODES_PER_ROW = 50, 5
#: Rows that a text names.
_NAMED_ROWS = 4
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[-+]?\d+)?")

ADVICE = "correct the environment; `python -m rollbus_wire.check MODULE:make` tests one by itself"


@dataclass(slots=True)
class NonFinite:
    """Some rows of an outcome hold a number that is not finite, or raised."""

    #: Which number of which row at which step, and what to do.
    text: str
    #: Every row of the outcome does.
    whole: bool
    #: Of what was raised.
    traceback: str = ""


def max_failed_episodes(num_rows: int) -> int:
    """Failed episodes in a row, of a hub with ``num_rows`` rows, that end it."""
    return max(MIN_FAILED_EPISODES, FAILED_EPISODES_PER_ROW * num_rows)


def where(kind: str, peer_rows: np.ndarray, steps: np.ndarray) -> str:
    """For a text: ``peer_rows`` int [R] of a peer that were asked for ``kind``.

    ``steps`` int [R] are those taken before in their episodes.
    """
    rows = [int(row) for row in peer_rows[:_NAMED_ROWS]]
    more = f" and {len(peer_rows) - len(rows)} more" if len(peer_rows) > len(rows) else ""
    named = f"row {rows[0]}" if len(peer_rows) == 1 else f"rows {rows}{more}"
    if kind == "reset":
        return f"{named}, reset"
    numbers = sorted({int(step) + (kind == "step") for step in steps})
    span = f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
    return f"{named}, env step {span} of the episode"


def spans(rows: list[int]) -> str:
    """For a text: "rows 0 to 3, 8" of ``rows`` in order."""
    parts: list[list[int]] = []
    for row in rows:
        if parts and parts[-1][-1] == row - 1:
            parts[-1].append(row)
        else:
            parts.append([row])
    told = [f"{part[0]} to {part[-1]}" if len(part) > 1 else f"{part[0]}" for part in parts[:_NAMED_ROWS]]
    more = " and others" if len(parts) > _NAMED_ROWS else ""
    return f"{'row' if len(rows) == 1 else 'rows'} {', '.join(told)}{more}"


class FailureLog:
    """Logs a failure at once, and what is the same but for its numbers at most every `REPEAT_S`."""

    def __init__(self, log: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._clock = log, clock
        #: By kind: when it was logged last, and how often it came since then.
        self._kinds: dict[str, tuple[float, int]] = {}

    def add(self, kind: str, event: str = "environment failed", **fields: Any) -> bool:
        """A failure of ``kind``, a text; whether it was logged as ``event``, with ``fields``."""
        kind, now = _NUMBER.sub("#", kind), self._clock()
        logged_at, held_back = self._kinds.get(kind, (-math.inf, 0))
        if now - logged_at < REPEAT_S:
            self._kinds[kind] = (logged_at, held_back + 1)
            return False
        if kind not in self._kinds and len(self._kinds) >= MAX_KINDS:
            del self._kinds[min(self._kinds, key=lambda each: self._kinds[each][0])]
        self._kinds[kind] = (now, 0)
        if held_back:
            fields["times"] = held_back + 1
        self._log.warning(event, **fields)
        return True
