"""The nursery's own process: ``python -m rollbus_launch.processes.forks FD RUN_DIR``. See nursery.py."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from rollbus_core.config.load import load_resolved
from rollbus_core.paths import RunPaths
from rollbus_launch import build
from rollbus_launch.commands.serve import end
from rollbus_launch.processes.children import LAUNCHER_PID
from rollbus_launch.serve import process_name, serve

_PR_SET_NAME = 15
#: A copy waits this long until the launcher is its parent.
_ADOPTION_S = 5.0
_END = {signal.SIGTERM}


def main(descriptor: int, run_dir: Path) -> int:
    """Fork one service per request until the launcher closes the connection or sends SIGTERM.

    SIGTERM ends it at once, also in the middle of an import, but not between a fork and its answer.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asked = socket.socket(fileno=descriptor)
    recipe = load_resolved(RunPaths(run_dir).config).recipe
    warm: set[str] = set()
    while request := asked.recv(65536):
        wanted = json.loads(request)
        for role in wanted["roles"]:
            if role not in warm:
                build.preload(role, recipe)
                warm.add(role)
        gc.freeze()  # a copy's collector leaves the shared pages as they are
        signal.pthread_sigmask(signal.SIG_BLOCK, _END)
        pid = _fork_twice(asked, wanted, run_dir)
        asked.send(json.dumps({"pid": pid}).encode())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _END)
    return 0


def _fork_twice(asked: socket.socket, wanted: dict[str, Any], run_dir: Path) -> int:
    """The pid of a grandchild whose parent has ended already."""
    read, write = os.pipe()
    parent = os.fork()
    if parent == 0:
        pid = os.fork()
        if pid:
            os.write(write, str(pid).encode())
            os._exit(0)
        os.close(read)
        os.close(write)
        asked.close()
        _become(wanted, run_dir)
    os.close(write)
    os.waitpid(parent, 0)
    with open(read) as told:
        return int(told.read())


def _become(wanted: dict[str, Any], run_dir: Path) -> None:
    """Be the service; never returns."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _END)
    os.setsid()
    try:
        output = os.open(wanted["output"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    except OSError:  # no room for it
        output = os.open(os.devnull, os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    name = process_name(wanted["roles"], wanted["index"])
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)
    deadline = time.monotonic() + _ADOPTION_S
    while os.getppid() != int(os.environ[LAUNCHER_PID]) and time.monotonic() < deadline:
        time.sleep(0.001)
    end(serve(wanted["roles"], wanted["index"], run_dir))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Path(sys.argv[2])))
