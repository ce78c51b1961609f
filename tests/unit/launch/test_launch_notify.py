"""sd_notify against a real socket."""

import socket
from pathlib import Path

import pytest

from rollbus_launch.processes.notify import Notifier


def test_states_arrive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = str(tmp_path / "n")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(2)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        monkeypatch.setenv("WATCHDOG_USEC", "1000000")
        notifier = Notifier()
        notifier.ready()
        notifier.alive()
        notifier.alive()
        notifier.stopping()
        assert [manager.recv(100) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"STOPPING=1"]


def test_silent_without_a_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    Notifier().ready()
