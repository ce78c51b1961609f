"""The body of a service process: what a launcher, a systemd unit or a container runs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from rollbus_core import memory, service
from rollbus_core.access import Access
from rollbus_core.checkpoints import write_atomic
from rollbus_core.config.load import load_resolved
from rollbus_core.lines import is_no_room
from rollbus_core.log import get_logger, take_in_standard
from rollbus_core.paths import AlreadyRuns, RunPaths, remove_dead
from rollbus_launch import build, ending
from rollbus_launch.chaos import clock
from rollbus_launch.processes import stacks
from rollbus_launch.processes.children import LAUNCHER_PID, NO_ROOM_CODE, end_with_parent
from rollbus_launch.processes.notify import Notifier
from rollbus_launch.waits import Waits
from rollbus_wire.errors import RollbusError, SharedMemoryFull

#: One thread per process unless told: two spinning OpenMP threads beside a busy process cost 10-25x.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


def serve(roles: Sequence[str], index: int | None, run_dir: Path) -> int:
    """Run ``roles`` in this process until they finish or a signal comes; the exit code.

    ``index`` None: the first that no other process of this host has.
    """
    limit_threads()
    clock.install()
    _end_with_parent()
    paths = RunPaths(run_dir)
    name = process_name(roles, index or 0)
    stop = _StopFlag()
    notifier = Notifier()
    services: list[service.Service] = []
    stage = "build"
    try:
        paths.create()
        resolved = load_resolved(paths.config)
        with paths.alive(), paths.claimed(roles, index) as number:
            name = process_name(roles, number)
            stacks.serve(paths, name)
            log = get_logger(paths, name)
            take_in_standard(log)
            ending.begun(paths, roles)
            access = Access.from_environment(log.warning)
            services = build.services(roles, number, resolved, paths, access, should_stop=stop)
            stage, waits = "run", Waits(log, paths.registry)
            log.info("started", pid=os.getpid(), roles=list(roles))
            service.run(
                services,
                should_stop=stop,
                on_ready=notifier.ready,
                on_turn=lambda: _turn(notifier, waits, services),
                drain_s=resolved.recipe.deploy.stop_timeout_s,
            )
            notifier.stopping()
            access.close()
            ending.stopped(paths, roles, "a signal to its broker" if stop() else "rollbus stop")
            log.info("stopped")
        if _orphaned():
            remove_dead()  # the launcher would have; the last service to end finds the folder unheld
    except build.Stopped:
        return 0
    except AlreadyRuns as error:
        # Logs and failures of this name are the other one's.
        print(f"rollbus serve: {error}", file=sys.stderr)
        return 2
    except Exception as error:  # noqa: BLE001 - the top of the process: report, then end
        member = next((s.member for s in services if s.member), None)
        if full := is_no_room(error):
            text = f"{error}; free some room for {paths.root}"
        elif memory.is_out_of_memory(error):
            text = memory.told(error, roles)
        else:
            text = str(error) if isinstance(error, RollbusError) else ""
        _report(paths, name, member.current_stage if member else stage, error, text)
        if full or isinstance(error, SharedMemoryFull):
            return NO_ROOM_CODE
        return 2 if isinstance(error, RollbusError) else 1
    return 0


def _turn(notifier: Notifier, waits: Waits, services: Sequence[service.Service]) -> None:
    notifier.alive()
    waits.turn(services)


def limit_threads() -> None:
    """Before numpy or torch are imported: one thread, unless the environment says otherwise."""
    for variable in THREAD_VARIABLES:
        os.environ.setdefault(variable, "1")


def process_name(roles: Sequence[str], index: int) -> str:
    """The name of a process in logs, the registry and the file system."""
    return f"{'+'.join(roles)}-{index}"


def _report(paths: RunPaths, name: str, stage: str, error: Exception, text: str) -> None:
    """``text``: what is wrong, where that needs no stack; "" where it does."""
    failure = {
        "service": name,
        "stage": stage,
        "error": text or f"{type(error).__name__}: {error}",
        "fatal": isinstance(error, RollbusError),
        "traceback": "" if text else traceback.format_exc(),
    }
    with contextlib.suppress(OSError):  # no room for it
        write_atomic(paths.failure(name), json.dumps(failure).encode())
        get_logger(paths, name).error("failed", **failure | {"traceback": traceback.format_exc()})
    with contextlib.suppress(OSError):  # it may go to a full disk
        print(f"{name} failed in stage {stage}: {failure['error']}", file=sys.stderr)
        if failure["traceback"]:
            print(failure["traceback"], file=sys.stderr)


class _StopFlag:
    """True once SIGTERM or SIGINT came."""

    def __init__(self) -> None:
        self.value = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._set)

    def _set(self, *_: object) -> None:
        self.value = True

    def __call__(self) -> bool:
        return self.value


def _end_with_parent() -> None:
    """Under a launcher: get SIGTERM when it dies, so that nothing is left behind."""
    if LAUNCHER_PID not in os.environ or sys.platform != "linux":
        return
    end_with_parent()
    if _orphaned():
        sys.exit(143)


def _orphaned() -> bool:
    """Whether a launcher started this process and is gone."""
    return os.environ.get(LAUNCHER_PID) not in (None, str(os.getppid()))
