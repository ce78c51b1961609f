"""Worker processes of a hub: started, restarted within a budget, and never left behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from rollbus_wire.errors import RollbusError

#: More ends of workers than this within `BUDGET_WINDOW_S` end the hub.
RESTARTS = 5
BUDGET_WINDOW_S = 600.0
#: From SIGTERM to SIGKILL.
STOP_S = 2.0
_PR_SET_PDEATHSIG = 1


class Workers:
    """One process per entry of ``rows``; ``command`` gives the argv for (endpoint, rows)."""

    def __init__(
        self,
        command: Callable[[str, int], Sequence[str]],
        endpoint: str,
        rows: Sequence[int],
        *,
        log: Any,
        restarts: int = RESTARTS,
    ) -> None:
        self._argv = [list(command(endpoint, n)) for n in rows]
        self._log, self._restarts = log, restarts
        self._ends: deque[float] = deque()
        self._libc = ctypes.CDLL(None) if sys.platform == "linux" else None
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start all."""
        self.processes = [self._spawn(argv) for argv in self._argv]

    def poll(self) -> bool:
        """Start again what has ended; whether something had. Raises once the budget is spent."""
        ended = False
        for index, process in enumerate(self.processes):
            code = process.poll()
            if code is None:
                continue
            ended = True
            self._signal(process, signal.SIGKILL)
            self._close(process)
            self._log.warning("worker ended", worker=index, pid=process.pid, code=code)
            now = time.monotonic()
            self._ends.append(now)
            while self._ends[0] < now - BUDGET_WINDOW_S:
                self._ends.popleft()
            if len(self._ends) > self._restarts:
                raise RollbusError(
                    f"environment workers ended {len(self._ends)} times within "
                    f"{BUDGET_WINDOW_S:.0f} s, the last one with code {code}; its output is above. "
                    f"Command: {' '.join(self._argv[index])}"
                )
            self.processes[index] = self._spawn(self._argv[index])
        return ended

    def stop(self) -> None:
        """End all within about `STOP_S`."""
        for process in self.processes:
            self._signal(process, signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        for process in self.processes:
            # The group too: an environment may have processes of its own.
            self._signal(process, signal.SIGKILL)
            process.wait()
            self._close(process)
        self.processes = []

    def _spawn(self, argv: Sequence[str]) -> subprocess.Popen[bytes]:
        # stdin is a pipe that nobody writes to: its end tells the worker that the hub is gone.
        return subprocess.Popen(
            argv, stdin=subprocess.PIPE, start_new_session=True, preexec_fn=self._end_with_parent
        )

    def _end_with_parent(self) -> None:
        if self._libc is not None:
            self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    @staticmethod
    def _signal(process: subprocess.Popen[bytes], number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)

    @staticmethod
    def _close(process: subprocess.Popen[bytes]) -> None:
        if process.stdin is not None:
            process.stdin.close()
