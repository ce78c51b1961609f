"""A process that a launcher started, and the plain way to start one."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from typing import Protocol

from rollbus_core.paths import RunPaths
from rollbus_launch.launchers.base import ProcessSpec

#: A service ends when the process of this id does.
LAUNCHER_PID = "ROLLBUS_LAUNCHER_PID"
_PR_SET_PDEATHSIG = 1
#: Exit code of a service that found no room on disk or in shared memory: it may find some later.
NO_ROOM_CODE = 75


class Child(Protocol):
    """What a launcher needs of a process; `subprocess.Popen` is one."""

    @property
    def pid(self) -> int | None:
        """None while it is being started."""
        ...

    def send_signal(self, sig: int) -> None:
        """Nothing happens if it has ended; one that is being started gets it when it exists."""
        ...

    def poll(self) -> int | None:
        """Its exit code (negative: the signal), or None while it runs."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Raises `subprocess.TimeoutExpired`."""
        ...


def environment() -> dict[str, str]:
    """The environment of a service that this process starts."""
    return {**os.environ, LAUNCHER_PID: str(os.getpid()), "PYTHONUNBUFFERED": "1"}


def end_with_parent() -> None:
    """This process gets SIGTERM when its parent dies (Linux; elsewhere nothing happens)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def start_command(paths: RunPaths, spec: ProcessSpec) -> Child:
    """Start ``spec`` as a command, in a session of its own, its output in the run's logs."""
    command = [
        sys.executable, "-m", "rollbus_launch", "serve", "+".join(spec.roles),
        "--index", str(spec.index), "--run-dir", str(paths.root),
    ]  # fmt: skip
    with open(paths.logs / f"{spec.name}.stderr", "ab") as errors:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, env=environment(),
            start_new_session=True,
        )  # fmt: skip
