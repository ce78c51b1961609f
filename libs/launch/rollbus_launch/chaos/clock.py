"""A wall clock that can be set from outside, for the services of a chaos run.

It moves what Python code reads as the wall clock; the machine's own clock stays as it is. Monotonic
time, by which services measure, does not jump on real machines either.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from pathlib import Path

#: Names the file that holds the offset.
CLOCK = "ROLLBUS_CLOCK_OFFSET"
_OFFSET = struct.Struct("<d")


def create(path: Path) -> None:
    """A file with the offset 0."""
    path.write_bytes(_OFFSET.pack(0.0))


def jump(path: Path, seconds: float) -> None:
    """Move the wall clock of all services by ``seconds`` from the true time."""
    with open(path, "r+b") as file:
        file.write(_OFFSET.pack(seconds))


def install() -> None:
    """In a service: have `time.time` follow the file that the environment names, if it does."""
    path = os.environ.get(CLOCK)
    if not path:
        return
    with open(path, "r+b") as file:
        offset = mmap.mmap(file.fileno(), _OFFSET.size)
    true_time = time.time
    time.time = lambda: float(true_time() + _OFFSET.unpack_from(offset)[0])
