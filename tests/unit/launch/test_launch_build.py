"""Composing services: the address of peers."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from rollbus_launch.environments import peer_link
from rollbus_wire.errors import BindRefused
from rollbus_wire.zmq_link import ZmqLink


def test_an_address_that_becomes_free_is_waited_for() -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
    threading.Timer(0.2, taken.close).start()
    link = peer_link("dial_in", endpoint, ZmqLink.bind)
    assert link is not None and link.endpoint == endpoint
    link.close()


def test_an_address_that_stays_taken_is_refused_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        started = time.monotonic()
        with pytest.raises(BindRefused, match="the address is in use"):
            peer_link("dial_in", f"tcp://127.0.0.1:{taken.getsockname()[1]}", ZmqLink.bind)
        assert time.monotonic() - started < 5
