"""CPU time that the system tells: of a process by thread, and of everything that runs on the machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

_STAT = Path("/proc/stat")
#: Columns of /proc/stat that are no work: idle and iowait; guests are counted among users.
_IDLE, _GUEST = (3, 4), 8


class Used(NamedTuple):
    """CPU seconds of a process so far: of its main thread, and of all others."""

    main_s: float = 0.0
    others_s: float = 0.0

    def since(self, before: Used) -> Used:
        """The difference."""
        return Used(self.main_s - before.main_s, self.others_s - before.others_s)


def told() -> bool:
    """Whether this system tells it."""
    return Path("/proc/self/schedstat").exists() and _STAT.exists()


def used(pid: Any) -> Used:
    """By the threads of ``pid``."""
    main_s, others_s = 0.0, 0.0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            seconds = int((task / "schedstat").read_text().split()[0]) / 1e9
        except (FileNotFoundError, ProcessLookupError):
            continue  # a thread that has just ended
        if task.name == str(pid):
            main_s = seconds
        else:
            others_s += seconds
    return Used(main_s, others_s)


def machine_s() -> float:
    """Core seconds of all work on this machine since it started, counted in ticks of the system's clock."""
    ticks = [int(number) for number in _STAT.read_text().split("\n", 1)[0].split()[1:]]
    return sum(n for column, n in enumerate(ticks[:_GUEST]) if column not in _IDLE) / os.sysconf("SC_CLK_TCK")
