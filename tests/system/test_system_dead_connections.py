"""What connections that end badly do to a service that listens."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from namespaces import Cable, why_not

#: A service that listens at argv[1] and reads nothing for argv[2] seconds, then all there is.
LISTEN = """
import sys, time, zmq
from rollbus_wire import sockets
socket = sockets.router(sockets.context(), sys.argv[1], secure=lambda socket: None)
print(sockets.bound_endpoint(socket), flush=True)
time.sleep(float(sys.argv[2]))
count = 0
while socket.poll(500):
    count += bool(socket.recv_multipart())
print(count, flush=True)
"""
#: Somebody who sends much more than the other side queues, and ends.
FLOOD = """
import sys, time, zmq
socket = zmq.Context().socket(zmq.DEALER)
socket.setsockopt(zmq.SNDHWM, 0)
socket.connect(sys.argv[1])
for _ in range(20_000):
    socket.send(bytes(2000))
time.sleep(1.0)
import os
os._exit(0)
"""
#: Somebody who says one word and stays.
STAY = """
import sys, time, zmq
socket = zmq.Context().socket(zmq.DEALER)
socket.connect(sys.argv[1])
socket.send(b"")
time.sleep(60)
"""


@pytest.mark.parametrize("address", [pytest.param("ipc://{}/a", marks=pytest.mark.long), "tcp://127.0.0.1:0"])
def test_a_flood_that_ends_before_it_was_read_ends_nobody_else(address: str, tmp_path: Path) -> None:
    # With ZMTP heartbeats libzmq aborted the listening process at the next one, after 5 s.
    with subprocess.Popen(
        [sys.executable, "-c", LISTEN, address.format(tmp_path), "7"], stdout=subprocess.PIPE, text=True
    ) as listener:
        assert listener.stdout is not None
        endpoint = listener.stdout.readline().strip()
        subprocess.run([sys.executable, "-c", FLOOD, endpoint], check=True, timeout=30)
        assert int(listener.stdout.readline()) >= 1024
        assert listener.wait(10) == 0


@pytest.mark.long
def test_a_connection_cut_without_a_word_is_closed() -> None:
    if reason := why_not():
        pytest.skip(reason)
    cable = Cable()
    started: list[subprocess.Popen[str]] = []
    try:
        at = f"tcp://{cable.addresses[cable.left]}:7777"
        listen = cable.command(cable.left, [sys.executable, "-c", LISTEN, at, "60"])
        started.append(subprocess.Popen(listen, stdout=subprocess.PIPE, text=True))
        assert started[0].stdout is not None and started[0].stdout.readline().strip() == at
        started.append(
            subprocess.Popen(cable.command(cable.right, [sys.executable, "-c", STAY, at]), text=True)
        )
        _wait_for(lambda: _established(cable) == 1, 10.0)
        cable.inside(cable.right, "ip", "link", "set", f"rbr{cable.right.removeprefix('right')}", "down")
        began = time.monotonic()
        _wait_for(lambda: _established(cable) == 0, 25.0)
        assert time.monotonic() - began > 5.0, "closed by something else than keep-alive"
        assert started[0].poll() is None
    finally:
        for process in started:
            process.kill()
            process.wait()
        cable.close()


def _established(cable: Cable) -> int:
    """TCP connections that the left side holds open."""
    table = cable.inside(cable.left, "cat", "/proc/net/tcp").splitlines()[1:]
    return sum(line.split()[3] == "01" for line in table)


def _wait_for(condition: Callable[[], bool], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.2)
