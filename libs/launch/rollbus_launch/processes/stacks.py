"""Where a process hangs: its Python stacks, written by itself on a signal, even if its loop does not turn."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
from pathlib import Path

from rollbus_core.paths import RunPaths

NUMBER = signal.SIGUSR1
#: Characters of a stack that are shown.
MAX_SHOWN = 4000


def path(paths: RunPaths, process: str) -> Path:
    """The file of the stacks of ``process``."""
    return paths.logs / f"{process}.stack"


def serve(paths: RunPaths, process: str) -> None:
    """In the process itself: write the stacks of all threads whenever `NUMBER` comes."""
    descriptor = os.open(path(paths, process), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    faulthandler.register(NUMBER, file=descriptor, all_threads=True)


def forget(paths: RunPaths, process: str) -> None:
    """Drop what ``process`` wrote before; it goes on at the beginning."""
    with contextlib.suppress(FileNotFoundError):
        os.truncate(path(paths, process), 0)


def read(paths: RunPaths, member: str, pid: int | None) -> str:
    """The stacks that the process of ``member`` wrote last, or why there are none."""
    role, _, index = member.rpartition("-")
    for file in paths.logs.glob(f"*-{index}.stack"):
        of_it = role in file.stem.rpartition("-")[0].split("+") and file.is_file()
        if of_it and (text := file.read_text(errors="replace")):
            return text.strip()[-MAX_SHOWN:]
    stands_still = _state(pid) == "T"
    return "no stack: " + ("the process stands still (SIGSTOP)" if stands_still else "it did not answer")


def _state(pid: int | None) -> str:
    """One letter, as in /proc/PID/stat; "" if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
