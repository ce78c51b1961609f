"""The parts of `rollbus chaos` that need no run: the schedule, the proxy, the disks."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import zmq

from rollbus_launch.chaos import clock
from rollbus_launch.chaos.faults import all_faults
from rollbus_launch.chaos.proxy import Proxy, Rule
from rollbus_launch.chaos.schedule import faults


def first(seed: int, num: int) -> list:
    found = faults(seed, list(all_faults()))
    return [next(found) for _ in range(num)]


def test_the_schedule_is_a_function_of_the_seed() -> None:
    assert first(7, 50) == first(7, 50)
    assert first(7, 50) != first(8, 50)


def test_every_kind_comes_once_in_each_round() -> None:
    num = len(all_faults())
    counts = Counter(fault.kind for fault in first(7, 3 * num))
    assert num >= 14 and set(counts.values()) == {3}


def test_a_pair_is_two() -> None:
    for fault in first(3, 200):
        a, b = fault.pair(["broker", "hub", "actor"])
        assert a != b and fault.choose(["x"]) == "x" and 1.0 <= fault.between(1.0, 2.0) < 2.0


@pytest.mark.parametrize("kind", sorted(all_faults()))
def test_each_fault_says_what_it_does(kind: str) -> None:
    module = all_faults()[kind]
    assert module.__doc__ and callable(module.inject)


@pytest.fixture
def through():
    """A dealer that dials a router through the proxy."""
    context = zmq.Context()
    router, dealer = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    proxy = Proxy({port: "store"}, 1)
    dealer.setsockopt_string(zmq.SOCKS_PROXY, proxy.address)
    dealer.connect(f"tcp://127.0.0.1:{port}")
    dealer.send_multipart([b"hello", b"", b"x" * 1000])
    assert router.poll(5000)
    assert router.recv_multipart()[1:] == [b"hello", b"", b"x" * 1000]
    yield router, dealer, proxy
    context.destroy(0)
    proxy.close()


def arrived(router: zmq.Socket, wait_ms: int = 300) -> list[bytes]:
    found = []
    while router.poll(wait_ms):
        found.append(router.recv_multipart()[-1])
    return found


def test_the_proxy_loses_doubles_and_delays_whole_messages_in_order(through) -> None:
    router, dealer, proxy = through
    for kind, expected in (("lost", []), ("doubled", [b"0", b"0", b"1", b"1"])):
        proxy.set(Rule(kind, "store", 1.0))
        for number in range(2):
            dealer.send_multipart([b"part", b"%d" % number])
        assert arrived(router) == expected
        assert proxy.done[kind] == 2
    proxy.set(Rule("late", "store", 1.0, 0.2))
    for number in range(5):
        dealer.send(b"%d" % number)
    assert arrived(router) == [b"0", b"1", b"2", b"3", b"4"]
    proxy.set(Rule("lost", "data", 1.0))
    dealer.send(b"of another plane")
    assert arrived(router) == [b"of another plane"]


def test_a_frozen_connection_carries_nothing_and_is_not_closed(through) -> None:
    router, dealer, proxy = through
    monitor = dealer.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    assert proxy.freeze("store") == 1
    dealer.send(b"into the void")
    assert arrived(router) == [] and not monitor.poll(100)
    dealer.disconnect(dealer.getsockopt_string(zmq.LAST_ENDPOINT))
    dealer.connect(router.getsockopt_string(zmq.LAST_ENDPOINT))
    dealer.send(b"anew")
    assert arrived(router) == [b"anew"]


def test_a_dead_destination_is_an_end_and_no_crash() -> None:
    context = zmq.Context()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    proxy = Proxy({}, 1)
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt_string(zmq.SOCKS_PROXY, proxy.address)
    dealer.connect(f"tcp://127.0.0.1:{port}")
    time.sleep(0.3)
    dealer.close(0)
    context.term()
    proxy.close()


def test_the_clock_of_a_service_follows_the_file(tmp_path: Path) -> None:
    clock.create(tmp_path / "clock")
    clock.jump(tmp_path / "clock", -3600.0)
    text = "import time\nfrom rollbus_launch.chaos import clock\nclock.install()\nprint(time.time())"
    done = subprocess.run(
        [sys.executable, "-c", text], env={**__import__("os").environ, clock.CLOCK: str(tmp_path / "clock")},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert -3610 < float(done.stdout) - time.time() < -3590
