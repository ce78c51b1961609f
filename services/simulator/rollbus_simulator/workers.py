"""Worker processes of a hub: what ends or hangs starts again within a budget, and none is left behind."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, Any

from rollbus_core.restarts import WINDOW_S, RestartBudget
from rollbus_simulator.peers import Peers
from rollbus_wire.errors import RollbusError
from rollbus_wire.places import STACK_FD, place_of_stack

#: Restarts of each worker within `WINDOW_S`, unless told.
RESTARTS = 5
#: How often they are looked at, and for how long after an end all peers are asked who is still there.
POLL_S, PROBE_S = 0.1, 1.0
#: People are told of a worker that has not dialled in for so long.
LATE_S = 60.0
#: From SIGTERM to SIGKILL.
STOP_S = 2.0
#: A worker that hangs has so long to write where, before it is killed.
STACK_S = 0.3
_PR_SET_PDEATHSIG = 1


@dataclass
class _Worker:
    """One process after the other, with the same command line."""

    argv: list[str]
    budget: RestartBudget
    #: Which rows of the run it served last, for a text.
    rows: str
    process: subprocess.Popen[bytes] | None = None
    #: Where it writes its stack when it is asked.
    stack: IO[bytes] | None = None
    #: When to start the next one.
    start_at: float = 0.0
    #: What is known of why it will end; "": nothing.
    why: str = ""
    #: It hangs, and is killed then.
    kill_at: float = math.inf
    #: When people are told that it has not dialled in.
    late_at: float = math.inf


class Workers:
    """One process per entry of ``rows``; ``command`` gives the argv for (endpoint, rows).

    The name under which a worker dials in to ``peers`` ends in its process id.
    """

    def __init__(
        self, command: Callable[[str, int], Sequence[str]], endpoint: str, rows: Sequence[int], *,
        peers: Peers, log: Any, restarts: int = RESTARTS,
    ) -> None:  # fmt: skip
        self._workers = [
            _Worker(list(command(endpoint, n)), RestartBudget(restarts), f"{n} rows") for n in rows
        ]
        self._log, self._peers = log, peers
        self._poll_at = self._probe_until = 0.0
        self._libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    @property
    def processes(self) -> list[subprocess.Popen[bytes]]:
        """Those that run, or have ended unnoticed."""
        return [each.process for each in self._workers if each.process is not None]

    def start(self) -> None:
        """Start all."""
        for worker in self._workers:
            self._spawn(worker)

    def serves(self, peer: str, rows: str) -> None:
        """The worker that dialled in as ``peer`` has ``rows``, a text."""
        for worker in self._of(peer):
            worker.rows, worker.late_at = rows, math.inf

    def hang(self, peer: str, why: str) -> None:
        """The worker that dialled in as ``peer`` does not answer: it is killed, and starts again."""
        for worker in self._of(peer):
            assert worker.process is not None
            worker.why, worker.kill_at = why, time.monotonic() + STACK_S
            worker.process.send_signal(signal.SIGUSR1)

    def given_up(self, peer: str, why: str) -> None:
        """The worker that dialled in as ``peer`` was told to end."""
        for worker in self._of(peer):
            worker.why = why.partition("\n")[0]  # its traceback was told

    def poll(self) -> bool:
        """Start again what has ended; whether something had. Raises once a budget is spent.

        The session of what ended is found by probing until the transport has noticed.
        """
        ended, now = False, time.monotonic()
        if now < self._poll_at:
            return False
        self._poll_at = now + POLL_S
        for index, worker in enumerate(self._workers):
            if worker.process is None:
                if now >= worker.start_at:
                    self._spawn(worker)
                continue
            if now >= worker.kill_at:
                self._signal(worker, signal.SIGKILL)
            self._tell_late(index, worker, now)
            code = worker.process.poll()
            if code is not None:
                ended = True
                self._ended(index, worker, code, now)
        if ended:
            self._probe_until = now + PROBE_S
        if self.probing:
            self._peers.probe()
        return ended

    @property
    def probing(self) -> bool:
        """Whether one has just ended."""
        return time.monotonic() < self._probe_until

    def stop(self) -> None:
        """End all within about `STOP_S`."""
        for worker in self._workers:
            self._signal(worker, signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        for worker in self._workers:
            if worker.process is not None:
                self._close(worker)

    def _ended(self, index: int, worker: _Worker, code: int, now: float) -> None:
        assert worker.process is not None
        pid = worker.process.pid
        if worker.kill_at < math.inf:
            place = place_of_stack(self._stack(worker))
            what = f"hung{' in ' + place if place else ''} ({worker.why}) and was killed"
        elif worker.why:
            what = f"was given up: {worker.why}"
        elif code < 0:
            what = f"ended by signal {signal.Signals(-code).name}"
        else:
            what = f"ended with code {code}; its output is in the hub's stderr"
        self._close(worker)
        wait_s = worker.budget.ended(now)
        self._log.warning("worker ended", worker=index, pid=pid, code=code, rows=worker.rows, why=what)
        text = f"environment worker {index} (pid {pid}, {worker.rows}) {what}"
        within = f"within {WINDOW_S / 60:.0f} minutes (deploy.restarts)"
        if wait_s is None:
            raise RollbusError(
                f"{text}. It has used up its {worker.budget.limit} restarts {within}. "
                f"Command: {' '.join(worker.argv)}"
            )
        worker.start_at = now + wait_s
        used = f"restart {worker.budget.num_restarts} of at most {worker.budget.limit} {within}"
        self._peers.failure = f"{text}. Its episodes count as interrupted; it starts again, {used}"

    def _tell_late(self, index: int, worker: _Worker, now: float) -> None:
        """Say once of a worker that has not dialled in: nobody knows how long making one may take."""
        assert worker.process is not None
        if worker.late_at < now:
            worker.late_at = math.inf
            self._log.warning("worker late", worker=index, pid=worker.process.pid)
            self._peers.failure = (
                f"environment worker {index} (pid {worker.process.pid}, {worker.rows}) has not dialled in "
                f"for {LATE_S:g} s: it is still making its environments, or hangs there"
            )

    def _spawn(self, worker: _Worker) -> None:
        worker.stack, worker.why, worker.kill_at = tempfile.TemporaryFile(), "", math.inf
        # stdin is a pipe that nobody writes to: its end tells the worker that the hub is gone.
        worker.process = subprocess.Popen(
            worker.argv, stdin=subprocess.PIPE, start_new_session=True, preexec_fn=self._end_with_parent,
            pass_fds=[worker.stack.fileno()], env={**os.environ, STACK_FD: str(worker.stack.fileno())},
        )  # fmt: skip
        now = time.monotonic()
        worker.budget.started(now)
        worker.late_at = now + LATE_S

    def _end_with_parent(self) -> None:
        if self._libc is not None:
            self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def _of(self, peer: str) -> list[_Worker]:
        pid = peer.rpartition("-")[2]
        return [w for w in self._workers if w.process is not None and str(w.process.pid) == pid]

    @staticmethod
    def _stack(worker: _Worker) -> str:
        assert worker.stack is not None
        worker.stack.seek(0)
        return worker.stack.read().decode(errors="replace")

    @staticmethod
    def _signal(worker: _Worker, number: int) -> None:
        """To the group: an environment may have processes of its own."""
        if worker.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.process.pid, number)

    def _close(self, worker: _Worker) -> None:
        process, stack = worker.process, worker.stack
        assert process is not None and stack is not None
        self._signal(worker, signal.SIGKILL)
        process.wait()
        if process.stdin is not None:
            process.stdin.close()
        stack.close()
        worker.process = worker.stack = None
