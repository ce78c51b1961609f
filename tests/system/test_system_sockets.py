"""T14: what a run listens on can be reached from this machine only."""

from __future__ import annotations

import ipaddress
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from system_kit import PATIENCE_S, descendants, end, long_run, wait_for_steps
from system_runner import TINY, Runner, wait_for

pytestmark = pytest.mark.timeout(400)


def connections(pid: int, kind: str) -> list[Any]:
    """Those of a process; none if it ended meanwhile, as the parent of a forked service does."""
    try:
        return psutil.Process(pid).net_connections(kind=kind)
    except psutil.NoSuchProcess:
        return []


def listening(pids: list[int]) -> list[tuple[str, int]]:
    """(host, port) of every TCP socket that ``pids`` listen on, and of every UDP socket they have."""
    found = []
    for pid in pids:
        for connection in connections(pid, "inet"):
            if connection.status == psutil.CONN_LISTEN or connection.type == socket.SOCK_DGRAM:
                found.append((connection.laddr.ip, connection.laddr.port))
    return found


def unix_paths(pids: list[int]) -> set[str]:
    """Named unix sockets of ``pids``."""
    found = set()
    for pid in pids:
        for connection in connections(pid, "unix"):
            if connection.laddr:
                found.add(str(connection.laddr))
    return found


@pytest.mark.parametrize("placement", ["inline", "workers"])
def test_a_default_run_is_reached_from_this_machine_only(rollbus: Runner, placement: str) -> None:
    run = rollbus.folder / "run"
    process = long_run(rollbus, run, f"env.placement={placement}")
    wait_for_steps(rollbus, run, 500, process)
    pids = [process.pid, *descendants(process.pid)]
    for host, port in listening(pids):
        assert ipaddress.ip_address(host).is_loopback, f"{host}:{port}"
    bound = {path for path in unix_paths(pids) if path.startswith("/")}
    assert {Path(path).name for path in bound} >= {"registry", "store", "hub-0-data"}
    for path in bound:
        folder = Path(path).parent
        assert folder.parent == rollbus.runtime and folder.stat().st_mode & 0o777 == 0o700, path
    assert not [path for path in unix_paths(pids) if path.startswith("@")], "an abstract name has no folder"
    end(process)


def test_another_loopback_address_is_really_bound(rollbus: Runner) -> None:
    run = rollbus.folder / "run"
    with socket.create_server(("127.0.0.2", 0)) as taken:
        port = taken.getsockname()[1]
    process = rollbus.start(
        "train", TINY, "env.placement=dial_in", f"env.listen=tcp://127.0.0.2:{port}",
        "eval.listen=tcp://127.0.0.3:5997", "broker.http=127.0.0.4:0", "--run-dir", str(run),
    )  # fmt: skip

    def addresses() -> dict[str, int]:
        return {host: port for host, port in listening(descendants(process.pid))}

    wait_for(lambda: {"127.0.0.2", "127.0.0.4"} <= set(addresses()), PATIENCE_S, "both addresses")
    assert addresses()["127.0.0.2"] == port
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 2)
    socket.create_connection(("127.0.0.2", port), 2).close()
    end(process)


@pytest.mark.parametrize(
    "setting",
    [
        "env.listen=tcp://0.0.0.0:5999", "env.listen=tcp://[::]:5999", "env.listen=tcp://*:5999",
        "eval.listen=tcp://0.0.0.0:5999", "broker.http=0.0.0.0:0",
    ],
)  # fmt: skip
def test_what_others_could_reach_is_refused(rollbus: Runner, setting: str) -> None:
    done = rollbus(
        "train", TINY, "env.placement=dial_in", "env.listen=tcp://127.0.0.1:5998",
        "eval.listen=tcp://127.0.0.1:5997", setting,
    )  # fmt: skip
    assert done.returncode == 2
    assert setting.split("=")[1].removeprefix("tcp://").rpartition(":")[0] in done.stderr
    assert "keys" in done.stderr and "Traceback" not in done.stderr


def test_a_service_by_hand_refuses_it_too(rollbus: Runner) -> None:
    rollbus.environment |= {"ROLLBUS_REGISTRY": "tcp://0.0.0.0:5996"}
    done = subprocess.run(
        [sys.executable, "-m", "rollbus_launch", "serve", "broker", "--config", TINY,
         "--run-dir", str(rollbus.folder / "run")],
        env=rollbus.environment, capture_output=True, text=True, timeout=PATIENCE_S, cwd=rollbus.folder,
    )  # fmt: skip
    assert done.returncode == 2
    assert "0.0.0.0" in done.stderr and "keys" in done.stderr
    del rollbus.environment["ROLLBUS_REGISTRY"]
    rollbus("doctor")
