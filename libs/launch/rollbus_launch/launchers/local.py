"""Processes of this machine, each in a session of its own, restarted within a budget."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from rollbus_core.paths import RunPaths
from rollbus_core.restarts import RestartBudget
from rollbus_launch.launchers.base import ProcessSpec
from rollbus_launch.processes import last_words, stacks
from rollbus_launch.processes.children import NO_ROOM_CODE, Child, start_command
from rollbus_wire.errors import RollbusError

#: The broker, which goes last, has at least this long to end.
LEAST_S = 0.5
#: A process that was killed is gone after this long, or hangs in the system and is left.
KILLED_S = 2.0
#: Services that end by themselves when their work is done. The others end in order only if somebody asks them
#: to; who asks all of them is heard of within so long.
FINISHING, ASKED_S = frozenset({"learner", "evaluator", "source"}), 1.0


#: Who may have.
_UNASKED = "SIGTERM from somebody else, or an exit in code that runs in it"


class ProcessFailed(RollbusError):
    """A process ended and may not or cannot be started again."""

    code = "process-failed"


@dataclass
class _Process:
    spec: ProcessSpec
    budget: RestartBudget
    child: Child | None = None
    start_at: float = 0.0
    #: Bytes that earlier starts have said.
    said: int = 0
    finished: bool = False
    #: Its end was asked for, and so is another start.
    wanted_again: bool = False
    #: Given up while others of its kind go on.
    quarantined: bool = False
    #: Scaled away: its end is no failure.
    leaving: bool = False
    #: It ended in order, though nobody is known to have asked it to: when, and its pid.
    unasked: tuple[float, int | None] | None = None


class LocalLauncher:
    """Starts, restarts and ends the processes of one run."""

    def __init__(
        self, paths: RunPaths, *, max_restarts: int, min_healthy: int = 1,
        on_exit: Callable[[ProcessSpec, int, str], None],
        on_again: Callable[[ProcessSpec, int], None] = lambda process, pid: None,
        start: Callable[[RunPaths, ProcessSpec], Child] = start_command,
        about: Callable[[ProcessSpec], str] = lambda process: "",
    ) -> None:  # fmt: skip
        """``min_healthy``: processes per service without which the run cannot go on. ``on_again`` is told of
        processes that were killed to start anew, ``on_exit`` of all others that ended. ``about``: what is
        known of one that ended without a report.
        """
        self.paths, self.max_restarts = paths, max_restarts
        self._on_exit, self._on_again = on_exit, on_again
        self._min_healthy = min_healthy
        self._start_child, self._about = start, about
        self._processes: dict[str, _Process] = {}

    def up(self, process: ProcessSpec) -> None:
        entry = self._processes.setdefault(process.name, _Process(process, RestartBudget(self.max_restarts)))
        if entry.finished:
            entry.budget = RestartBudget(self.max_restarts)
        entry.finished = entry.leaving = entry.quarantined = False
        entry.unasked = None
        self._start(entry)

    def scale(self, role: str, count: int) -> None:
        """Processes of ``role`` alone come and go; one that holds other services too stays."""
        there = [p for p in self._processes.values() if role in p.spec.roles and not p.finished]
        like = [p for p in there if not p.leaving]
        alone = [p for p in like if p.spec.roles == (role,)]
        for entry in alone[max(0, len(alone) - max(0, len(like) - count)) :]:
            _leave(entry)
        taken = {p.spec.index for p in there}
        free = (i for i in range(10**6) if i not in taken)
        for _ in range(count - len(like)):
            self.up(ProcessSpec((role,), next(free)))

    def ps(self) -> list[dict[str, object]]:
        return [
            {
                "name": name,
                "pid": p.child.pid if p.child else None,
                "restarts": p.budget.num_restarts,
                "state": _state(p),
            }
            for name, p in self._processes.items()
        ]

    def again(self, roles: Collection[str]) -> None:
        """Kill the processes with any of ``roles``; they start anew, which counts against no budget."""
        for entry in self._processes.values():
            if entry.child is not None and not entry.finished and not set(roles).isdisjoint(entry.spec.roles):
                entry.wanted_again = True
                _signal(entry, signal.SIGKILL)

    def kill(self, role: str, index: int, pid: int | None) -> bool:
        """Kill the process of a service, if it is ``pid`` (None: whichever it is); whether there was one."""
        for entry in self._processes.values():
            child = entry.child
            if role in entry.spec.roles and entry.spec.index == index and child is not None:
                if child.poll() is None and pid in (None, child.pid):
                    _signal(entry, signal.SIGKILL)
                    return True
        return False

    def ask_stack(self, role: str, index: int) -> None:
        """Have the process of a service write down where it is (`rollbus_launch.processes.stacks`)."""
        for entry in self._processes.values():
            if role in entry.spec.roles and entry.spec.index == index:
                stacks.forget(self.paths, entry.spec.name)
                _signal(entry, stacks.NUMBER)

    def goes_on(self, process: ProcessSpec) -> bool:
        """Whether the run does without or with another start of ``process``, which has ended."""
        entry = self._processes[process.name]
        return entry.quarantined or not entry.finished

    def running(self, role: str) -> bool:
        """Whether a process with ``role`` has not finished."""
        return self.num_running(role) > 0

    def num_running(self, role: str) -> int:
        """Processes with ``role`` that have not finished."""
        return sum(role in p.spec.roles and not p.finished for p in self._processes.values())

    def poll(self) -> None:
        """Notice ended processes and start again what is due. Raises `ProcessFailed`."""
        now = time.monotonic()
        for entry in self._processes.values():
            if entry.child and (code := entry.child.poll()) is not None:
                pid, entry.child = entry.child.pid, None
                if code == 0 and not entry.leaving and FINISHING.isdisjoint(entry.spec.roles):
                    entry.unasked = (now, pid)
                else:
                    self._ended(entry, code, pid, now)
            if entry.unasked and now >= entry.unasked[0] + ASKED_S:
                (_, pid), entry.unasked = entry.unasked, None
                self._ended(entry, 0, pid, now, unasked=True)
            idle = entry.child is None and not entry.unasked
            if idle and not entry.finished and now >= entry.start_at:
                self._start(entry)

    def down(self, timeout_s: float) -> None:
        """SIGTERM to all, SIGKILL to what is left after ``timeout_s``; the broker goes last.

        All are waited for together, so that it takes as long for many that hang as for one.
        """
        entries = sorted(self._processes.values(), key=lambda p: "broker" in p.spec.roles)
        deadline = time.monotonic() + timeout_s
        for group in (
            [e for e in entries if "broker" not in e.spec.roles],
            [e for e in entries if "broker" in e.spec.roles],
        ):
            for entry in group:
                _leave(entry)
            _wait(group, max(deadline, time.monotonic() + LEAST_S))
            for entry in group:
                _signal(entry, signal.SIGKILL)
            _wait(group, time.monotonic() + KILLED_S)
            for entry in group:
                entry.finished = True

    def _start(self, entry: _Process) -> None:
        self.paths.failure(entry.spec.name).unlink(missing_ok=True)
        entry.budget.started(time.monotonic())
        entry.said = last_words.size(self._output(entry.spec))
        entry.child = self._start_child(self.paths, entry.spec)

    def _ended(self, entry: _Process, code: int, pid: int | None, now: float, unasked: bool = False) -> None:
        if entry.wanted_again and not entry.leaving:
            entry.wanted_again, entry.start_at = False, now
            self._on_again(entry.spec, pid or 0)
            return
        reason = self._reason(entry.spec, code, entry.said, unasked)
        wanted = entry.leaving or code == 0 and not unasked
        wait_s = None
        if not wanted and not self._fatal(entry.spec, code):
            wait_s = entry.budget.ended(now, blameless=code == NO_ROOM_CODE)
        entry.finished = wait_s is None
        entry.quarantined = entry.finished and not wanted and self._enough_without(entry)
        if entry.quarantined:
            reason += (
                f"\n{entry.spec.name} is not started again; the others go on (rollbus scale replaces it)"
            )
        if wait_s is not None:
            used = f"{entry.budget.num_restarts} of {entry.budget.limit} restarts"
            reason += f"\n{entry.spec.name} starts again in {wait_s:.1f} s ({used})"
        self._on_exit(entry.spec, pid or 0, reason)
        if wait_s is not None:
            entry.start_at = now + wait_s
        elif not wanted and not entry.quarantined:
            raise ProcessFailed(reason)

    def _enough_without(self, entry: _Process) -> bool:
        """Whether each of its services has enough other processes that run."""
        return all(
            sum(role in p.spec.roles and _running(p) for p in self._processes.values() if p is not entry)
            >= self._min_healthy
            for role in entry.spec.roles
        )

    def _reason(self, spec: ProcessSpec, code: int, said: int, unasked: bool) -> str:
        failure = self._failure(spec)
        if failure:
            text = f"{spec.name} failed in stage {failure['stage']}: {failure['error']}"
            return f"{text}\n{failure['traceback']}" if failure["traceback"] else text
        if code == NO_ROOM_CODE:  # nor, then, for what it had to say
            return f"{spec.name} ended: its disk or shared memory is full"
        if unasked:
            return (
                f"{spec.name} ended in order, but the run did not ask it to ({_UNASKED}){self._about(spec)}"
            )
        text = f"{spec.name} ended by {last_words.how(code)}"
        if not last_words.unexplained(code):
            return text
        output = self._output(spec)
        words = last_words.words(output, said)
        told = f"its last words:\n{words}" if words else f"it said nothing; its log: {output}"
        return f"{text}{self._about(spec)}; {told}"

    def _output(self, spec: ProcessSpec) -> Path:
        """What it writes to its console."""
        return self.paths.logs / f"{spec.name}.stderr"

    def _fatal(self, spec: ProcessSpec, code: int) -> bool:
        """Whether another start would fail in the same way."""
        failure = self._failure(spec)
        return bool(failure and failure["fatal"]) and code != NO_ROOM_CODE

    def _failure(self, spec: ProcessSpec) -> dict[str, str] | None:
        try:
            return dict(json.loads(self.paths.failure(spec.name).read_text()))
        except (OSError, ValueError):
            return None


def _state(entry: _Process) -> str:
    if entry.finished:
        return "quarantined" if entry.quarantined else "ended"
    return "up" if _running(entry) else "starting"


def _running(entry: _Process) -> bool:
    return entry.child is not None and entry.child.poll() is None


def _signal(entry: _Process, number: signal.Signals) -> None:
    """To the whole session of the process, its workers included."""
    if entry.child is None or entry.child.poll() is not None:
        return
    pid = entry.child.pid
    try:
        if number == signal.SIGKILL and pid is not None:
            os.killpg(pid, number)
        else:
            entry.child.send_signal(number)
    except ProcessLookupError:
        pass


def _leave(entry: _Process) -> None:
    """Have it end, and not start again."""
    entry.leaving = True
    if entry.child is None:  # it waits for its next start
        entry.finished = True
    _signal(entry, signal.SIGTERM)


def _wait(entries: list[_Process], deadline: float) -> None:
    """Until all have ended, or the ``deadline``."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        for entry in entries:
            if entry.child is not None:
                entry.child.wait(max(0.0, deadline - time.monotonic()))
