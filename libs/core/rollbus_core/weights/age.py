"""How old a version is: from its publication to now, on this host or another.

On one host both processes read one monotonic clock, which nobody sets; across hosts the wall clocks are
compared, and their error is part of the figure.
"""

from __future__ import annotations

import functools
import time
from pathlib import Path

from rollbus_wire.messages import Notice


@functools.cache
def boot_id() -> str:
    """Which start of which machine this is; "" if the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def stamp() -> tuple[float, float, str]:
    """Now, for a notice: Unix time in s, monotonic time in s, and the boot that the latter belongs to."""
    return time.time(), time.monotonic(), boot_id()


def age_s(notice: Notice) -> float:
    """Seconds since the publication of ``notice`` began; 0 if it does not say when that was."""
    wall, monotonic, boot = stamp()
    if notice.boot and notice.boot == boot:
        return max(0.0, monotonic - notice.published_mono_s)
    return max(0.0, wall - notice.published_s) if notice.published_s else 0.0
