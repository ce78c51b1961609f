"""What injectors can reach: the processes of a run, its network, its disks, its clock."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from rollbus_core.paths import RunPaths
from rollbus_launch.chaos.disks import Disk
from rollbus_launch.chaos.proxy import Proxy
from rollbus_launch.control import Control
from rollbus_wire.errors import RollbusError

TURN_S = 0.02


@dataclass
class World:
    """One run under chaos. ``disk`` and ``memory`` are None where no small file system can be mounted."""

    paths: RunPaths
    proxy: Proxy
    clock: Path
    disk: Disk | None
    memory: Disk | None
    pids: dict[str, int] = field(default_factory=dict)
    endpoints: dict[str, str] = field(default_factory=dict)
    _updates: int = 0
    _offset: int = 0

    # --- looking ---

    def members(self) -> list[dict[str, Any]]:
        """The rows of `rollbus ps`; none while the broker does not answer."""
        try:
            with Control(self.paths, timeout_s=0.5) as control:
                return control.members().members
        except RollbusError:
            return []

    def whole(self, names: set[str]) -> bool:
        """Whether all services ``names`` are ready; then their process ids are known, too."""
        ready = {m["name"]: m for m in self.members() if m["state"] == "ready"}
        if not names <= set(ready):
            return False
        self.pids = {name: int(ready[name]["pid"]) for name in ready if ready[name]["role"] != "launcher"}
        self.endpoints = {name: row["slices"][0]["endpoint"] for name, row in ready.items() if row["slices"]}
        return True

    def updates(self) -> int:
        """Updates that the learner has written down since the start of the run, repeated ones included."""
        with contextlib.suppress(FileNotFoundError), open(self.paths.metrics, "rb") as file:
            file.seek(self._offset)
            data = file.read()
            whole = data.rfind(b"\n") + 1
            self._offset += whole
            self._updates += data[:whole].count(b"\n")
        return self._updates

    def services(self, *roles: str) -> list[str]:
        """Names of the services, those of ``roles`` if there are any."""
        names = sorted(self.pids)
        return [n for n in names if not roles or n.rpartition("-")[0] in roles]

    def peers(self) -> list[int]:
        """Processes that serve environments to hubs."""
        return [
            child.pid
            for name in self.services("hub")
            for child in psutil.Process(self.pids[name]).children()
            if any("rollbus_envs.worker" in word for word in child.cmdline())
        ]

    # --- doing ---

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send ``number`` to service ``name``; nothing if it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pids[name], number)

    def wait(self, seconds: float, until: Callable[[], Any] = lambda: False) -> bool:
        """Let time pass; whether ``until`` came true."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if until():
                return True
            time.sleep(TURN_S)
        return False

    @contextlib.contextmanager
    def stopped(self, name: str) -> Iterator[None]:
        """``name`` stands still during the block."""
        self.signal(name, signal.SIGSTOP)
        try:
            yield
        finally:
            self.signal(name, signal.SIGCONT)


def free_port() -> int:
    """A port of the loopback address that nobody listens on."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
