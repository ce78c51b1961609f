"""How long a message between two processes takes; ``python -m rollbus_launch.planning.echo ADDRESS`` answers.

The way costs CPU time of both processes and their I/O threads; the rest is waking up what sleeps.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rollbus_wire.errors import DeadlineExceeded
from rollbus_wire.messages import Goodbye, Ping
from rollbus_wire.polling import Poller, drain
from rollbus_wire.zmq_link import ZmqLink

#: The other process has this long to start.
START_S = 20.0


class Way(NamedTuple):
    """What a message takes between two processes, beside the work of sender and receiver themselves."""

    #: CPU seconds of the I/O threads of both.
    message_s: float
    #: Seconds until what sleeps runs.
    wake_s: float


def way(num_rounds: int = 400) -> Way:
    """Of one small message; the machine should be idle."""
    with tempfile.TemporaryDirectory() as folder:
        endpoint = f"ipc://{Path(folder) / 'echo'}"
        link = ZmqLink.bind(endpoint)
        other = subprocess.Popen([sys.executable, "-m", __spec__.name, endpoint])
        try:
            return _rounds(link, num_rounds)
        finally:
            link.close()
            other.kill()
            other.wait()


def _rounds(link: ZmqLink, num_rounds: int) -> Way:
    poller = Poller()
    poller.add(link)
    peer, theirs = _next(link, poller)
    times, ours = [], _used()
    for _ in range(num_rounds):
        began = time.perf_counter()
        link.send(Ping(), to=peer)
        _, told = _next(link, poller)
        times.append(time.perf_counter() - began)
    # Of both processes, for two messages.
    both = [(_used(), ours), (told, theirs)]
    main_s = sum(now.main_s - then.main_s for now, then in both) / num_rounds
    io_s = sum(now.io_s - then.io_s for now, then in both) / num_rounds
    return Way(io_s / 2, max(0.0, median(times) - main_s - io_s) / 2)


class _Used(NamedTuple):
    """CPU seconds of a process so far."""

    main_s: float
    #: Of all its other threads: ZeroMQ's, where nothing else runs.
    io_s: float


def _used() -> _Used:
    main_s = time.thread_time()
    return _Used(main_s, time.process_time() - main_s)


def _next(link: ZmqLink, poller: Poller) -> tuple[bytes, _Used]:
    """Who answered, and what it had used."""
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        for envelope in drain(link):
            return envelope.peer, _told(envelope.message)
        poller.wait(0.1)
    raise DeadlineExceeded(f"the echo process did not answer within {START_S:.0f} s")


def _tell() -> Goodbye:
    # Any message that carries a text would do.
    return Goodbye(" ".join(map(repr, _used())))


def _told(message: object) -> _Used:
    return _Used(*map(float, message.reason.split())) if isinstance(message, Goodbye) else _Used(0.0, 0.0)


def answer(endpoint: str) -> None:
    """Tell this process's CPU time, first unasked and then once per message, for ever."""
    link = ZmqLink.connect(endpoint)
    poller = Poller()
    poller.add(link)
    link.send(_tell())
    while True:
        for _ in drain(link):
            link.send(_tell())
        poller.wait(1.0)


if __name__ == "__main__":
    answer(sys.argv[1])
