"""Starts services as copies of one process that has already imported what they import.

Importing torch takes seconds of CPU, once per process. The nursery imports it once and forks; a new
actor is there in tenths of a second, and the copies share the memory of what was imported. Each service
is forked twice, so that the launcher, a subreaper meanwhile, becomes its parent: the nursery may die
at any time, and then services are started as commands.

Few requests are under way at once, so neither end ever waits for room in the socket, however many
services are wanted, and one that was not asked for yet can be called off.

A fork copies one thread only, so the nursery must have started no other: it creates no socket, no
device context and no torch operation, and thread pools are limited before numpy is imported.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque

from rollbus_core.paths import RunPaths
from rollbus_launch.launchers.base import ProcessSpec
from rollbus_launch.processes.children import Child, environment, start_command
from rollbus_launch.serve import THREAD_VARIABLES

#: The nursery's own end.
_PROGRAM = "rollbus_launch.processes.forks"
_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.02
#: Requests that are not answered yet; the others wait here.
IN_FLIGHT = 8
#: A nursery that was told to end and still runs after this long is killed.
_END_S = 1.0


class Nursery:
    """The launcher's end: asks for processes and becomes their parent."""

    def __init__(self, paths: RunPaths) -> None:
        self.paths = paths
        #: Asked for, and not asked for yet; both in order.
        self._unborn: deque[NurseryChild] = deque()
        self._waiting: deque[NurseryChild] = deque()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        one_thread = {name: os.environ.get(name, "1") for name in THREAD_VARIABLES}
        with theirs, open(paths.logs / "nursery.stderr", "ab") as errors:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", _PROGRAM, str(theirs.fileno()), str(paths.root)],
                stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, env=environment() | one_thread,
                pass_fds=[theirs.fileno()], start_new_session=True,
            )  # fmt: skip

    def start(self, paths: RunPaths, spec: ProcessSpec) -> Child:
        """A process for ``spec``; its pid is known a little later. Never waits."""
        child = NurseryChild(self, paths, spec)
        self._waiting.append(child)
        self._ask()
        return child

    def hear(self, timeout_s: float = 0.0) -> None:
        """Take what the nursery tells, pids in the order of the requests or its end; ask for more."""
        while self._unborn and select.select([self._socket], [], [], timeout_s)[0]:
            told, child = self._told(), self._unborn.popleft()
            child.born(Adopted(told) if told else start_command(child.paths, child.spec))
            timeout_s = 0.0
            self._ask()
            _subreaper(bool(self._unborn))

    def call_off(self, child: NurseryChild) -> bool:
        """Whether ``child`` was not asked for yet, and will not be."""
        if child not in self._waiting:
            return False
        self._waiting.remove(child)
        return True

    def close(self) -> None:
        """End the nursery. The services that it started live on; who is not there yet never will be."""
        self.popen.terminate()
        try:
            self.popen.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
        while self._unborn:
            told, child = self._told(), self._unborn.popleft()
            child.born(Adopted(told) if told else CalledOff(signal.SIGTERM))
        while self._waiting:
            self._waiting.popleft().born(CalledOff(signal.SIGTERM))
        self._socket.close()
        _subreaper(False)

    def _ask(self) -> None:
        while self._waiting and len(self._unborn) < IN_FLIGHT:
            child = self._waiting.popleft()
            output = str(child.paths.logs / f"{child.spec.name}.stderr")
            request = {"roles": child.spec.roles, "index": child.spec.index, "output": output}
            _subreaper(True)
            try:
                self._socket.send(json.dumps(request).encode())
            except OSError:
                child.born(start_command(child.paths, child.spec))
            else:
                self._unborn.append(child)

    def _told(self) -> int:
        """The next pid; 0 if the nursery has ended. Waits."""
        try:
            told = self._socket.recv(4096)
        except OSError:
            return 0
        return int(json.loads(told)["pid"]) if told else 0


class NurseryChild:
    """A process that the nursery was asked for."""

    def __init__(self, nursery: Nursery, paths: RunPaths, spec: ProcessSpec) -> None:
        self._nursery, self.paths, self.spec = nursery, paths, spec
        self._child: Child | None = None
        self._signals: list[int] = []

    def born(self, child: Child) -> None:
        """It exists now."""
        self._child = child
        for number in self._signals:
            child.send_signal(number)

    def send_signal(self, sig: int) -> None:
        self._nursery.hear()
        if self._child is not None:
            self._child.send_signal(sig)
        elif sig in (signal.SIGTERM, signal.SIGKILL) and self._nursery.call_off(self):
            self._child = CalledOff(sig)
        else:
            self._signals.append(sig)

    @property
    def pid(self) -> int | None:
        self._nursery.hear()
        return self._child.pid if self._child else None

    def poll(self) -> int | None:
        self._nursery.hear()
        return self._child.poll() if self._child else None

    def wait(self, timeout: float | None = None) -> int:
        """Until it has ended; one that does not exist yet is awaited within ``timeout``, too."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._child is None:
            self._nursery.hear(_POLL_S)
            if self._child is None and deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self.spec.name, timeout or 0.0)
        return self._child.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))


class Adopted:
    """A process that became this one's child when its own parent ended."""

    def __init__(self, pid: int) -> None:
        self.pid: int = pid
        self._code: int | None = None

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def poll(self) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(_POLL_S)
        return code


class CalledOff:
    """A process that was ended by ``sig`` before there was one."""

    pid = None

    def __init__(self, sig: int) -> None:
        self._code = -sig

    def send_signal(self, sig: int) -> None:
        """It has ended."""

    def poll(self) -> int:
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        return self._code


def available() -> bool:
    """Whether this system lets a process adopt the children of its children."""
    return sys.platform == "linux"


def _subreaper(wanted: bool) -> None:
    """Adopt the orphans among this process's descendants, but only while some are expected: the
    others, such as workers of a killed hub, are init's to clear away."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0)
