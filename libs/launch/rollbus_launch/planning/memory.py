"""Bytes of service processes: what is imported once and shared by copies, and what each role adds to its own.

Services are forked from a process that has imported what they need (processes/nursery.py), so that the
imports count once per host.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

from rollbus_launch import build

_ROLES = ("broker", "hub", "actor", "learner")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


class Growth:
    """Private memory of this process, by who made it grow."""

    def __init__(self, recipe: Any) -> None:
        """Imports what all services import."""
        #: Of a process that has imported nothing of the services, as the launcher has.
        self.launcher_bytes = private_bytes()
        for role in _ROLES:
            build.preload(role, recipe)
        self.shared_bytes = _resident_bytes()
        fork_bytes = _private_of_a_copy()
        self.role_bytes: dict[str, float] = {"process": fork_bytes, "launcher": float(self.launcher_bytes)}
        self._last = private_bytes()

    def add(self, role: str) -> None:
        """What the process has grown by since the last call is the role's."""
        now = private_bytes()
        self.role_bytes[role] = self.role_bytes.get(role, 0.0) + max(0, now - self._last)
        self._last = now


def private_bytes() -> int:
    """Anonymous memory of this process."""
    resident, shared = _statm()
    return (resident - shared) * _PAGE_BYTES


def _resident_bytes() -> float:
    return float(_statm()[0] * _PAGE_BYTES)


def _statm() -> tuple[int, int]:
    numbers = Path("/proc/self/statm").read_text().split()
    return int(numbers[1]), int(numbers[2])


def _private_of_a_copy() -> float:
    """Private bytes of a fork of this process that has done nothing yet."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            os.write(write, str(_private_rollup()).encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    with open(read) as told:
        return float(told.read() or 0)


def _private_rollup() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Private_"))
