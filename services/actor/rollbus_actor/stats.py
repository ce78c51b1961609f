"""What an actor counts, as numbers for heartbeats."""

from __future__ import annotations

from collections import deque

#: Rates are over this long.
WINDOW_S = 5.0


class Stats:
    """Decisions, passes and where the time goes."""

    def __init__(self, now: float) -> None:
        self.num_decisions = 0
        #: Forward passes; of continuous decoding those that read prompts.
        self.num_passes = 0
        #: Steps of continuous decoding, and rows in all of them.
        self.num_steps = self.num_step_rows = 0
        #: Decisions of slices that are not recorded, and those of no use to a chunk.
        self.num_unrecorded = 0
        self.busy_s = 0.0
        #: Slice-seconds spent waiting for tickets, and slice-seconds held.
        self.ticket_wait_s = 0.0
        self.held_s = 0.0
        self._marks: deque[tuple[float, int, float]] = deque([(now, 0, 0.0)])

    def passed(self, num_rows: int) -> None:
        """One forward pass over ``num_rows`` rows is done."""
        self.num_passes += 1
        self.num_decisions += num_rows

    def stepped(self, num_rows: int) -> None:
        """One step of ``num_rows`` open rows is done."""
        self.num_steps += 1
        self.num_step_rows += num_rows

    def numbers(self, now: float, waiting_s: float = 0.0) -> dict[str, float]:
        """Rates are over the last seconds, sums over the process's life.

        ``waiting_s``: slice-seconds of the waits for tickets that still last.
        """
        self._marks.append((now, self.num_decisions, self.busy_s))
        while len(self._marks) > 2 and now - self._marks[0][0] > WINDOW_S:
            self._marks.popleft()
        since, decisions, busy_s = self._marks[0]
        span = max(now - since, 1e-9)
        steps = {"decode_rows": self.num_step_rows / self.num_steps} if self.num_steps else {}
        return steps | {
            "steps": self.num_decisions,
            "steps_per_s": (self.num_decisions - decisions) / span,
            "batch_rows_mean": self.num_decisions / max(1, self.num_passes),
            "busy": (self.busy_s - busy_s) / span,
            "ticket_wait_fraction": min(1.0, (self.ticket_wait_s + waiting_s) / max(self.held_s, 1e-9)),
            "unrecorded": self.num_unrecorded,
        }
