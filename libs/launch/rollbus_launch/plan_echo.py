"""How long a message between two processes takes: ``python -m rollbus_launch.plan_echo ENDPOINT`` answers.

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
from rollbus_wire.link import Poller, ZmqLink, drain
from rollbus_wire.messages import Goodbye, Ping

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
    peer, told_s = _next(link, poller)
    times, own_s, main_s = [], time.process_time(), time.thread_time()
    for _ in range(num_rounds):
        began = time.perf_counter()
        link.send(Ping(), to=peer)
        _, now_s = _next(link, poller)
        times.append(time.perf_counter() - began)
    cpu_s = (time.process_time() - own_s + now_s - told_s) / num_rounds
    main_s = (time.thread_time() - main_s) / num_rounds
    # Both main threads do the same: what is left of the CPU time is of I/O threads, for two messages.
    return Way(max(0.0, cpu_s - 2 * main_s) / 2, max(0.0, median(times) - cpu_s) / 2)


def _next(link: ZmqLink, poller: Poller) -> tuple[bytes, float]:
    """Who answered, and the CPU time that it had used."""
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        for envelope in drain(link):
            return envelope.peer, _cpu_s(envelope.message)
        poller.wait(0.1)
    raise DeadlineExceeded(f"the echo process did not answer within {START_S:.0f} s")


def _cpu_s(message: object) -> float:
    # Any message that carries a text would do.
    return float(message.reason) if isinstance(message, Goodbye) else 0.0


def answer(endpoint: str) -> None:
    """Tell this process's CPU time, first unasked and then once per message, for ever."""
    link = ZmqLink.connect(endpoint)
    poller = Poller()
    poller.add(link)
    link.send(Goodbye(repr(time.process_time())))
    while True:
        for _ in drain(link):
            link.send(Goodbye(repr(time.process_time())))
        poller.wait(1.0)


if __name__ == "__main__":
    answer(sys.argv[1])
