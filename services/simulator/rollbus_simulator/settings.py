"""What all slices of a hub share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SliceSettings:
    """Limits and arrangement of decisions; times in seconds."""

    #: Steps after which an episode is truncated; 0: the environment's own limit.
    time_limit: int = 0
    action_repeat: int = 1
    frame_stack: int = 1
    #: A tick closes this long after its first row; 0: it waits for all.
    tick_deadline_s: float = 0.0
    #: Whether steps may be recorded.
    record: bool = True


def split(num: int, parts: int) -> list[int]:
    """``num`` in ``parts`` shares that differ by at most one."""
    return [num // parts + (i < num % parts) for i in range(parts)]
