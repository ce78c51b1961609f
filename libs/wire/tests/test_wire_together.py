"""Several messages in one transmission: `Link.together`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Iterator, List, Tuple

import numpy as np
import pytest
import zmq
from key_kit import make_key, revoke

from rollbus_wire import keys, sockets
from rollbus_wire.codec import pack
from rollbus_wire.gate import Gate, Refusal
from rollbus_wire.limits import MAX_TOGETHER
from rollbus_wire.link import Link, local_pair
from rollbus_wire.messages import PROTOCOL, Ping, Step
from rollbus_wire.polling import Poller, drain
from rollbus_wire.zmq_link import ZmqLink

Pair = Tuple[ZmqLink, ZmqLink]


@pytest.fixture()
def links(tmp_path: Path) -> Iterator[Pair]:
    service = ZmqLink.bind("ipc://%s/s" % tmp_path)
    peer = ZmqLink.connect(service.endpoint)
    yield service, peer
    peer.close()
    service.close()


def header(id: int, kind: str = "ping", **fields: Any) -> bytes:
    """A message without arrays, as it travels."""
    return bytes(pack({"v": PROTOCOL[0], "k": kind, "id": id, "b": {}, **fields})[0])


def ids(link: Link, num: int, timeout_s: float = 5.0) -> List[int]:
    """Ids of the next ``num`` messages, or of those that came in time."""
    found: List[int] = []
    deadline = time.monotonic() + timeout_s
    while len(found) < num and time.monotonic() < deadline:
        found += [envelope.id for envelope in drain(link, num - len(found))]
        time.sleep(0.001)
    return found


def transmissions(socket: zmq.Socket, num: int) -> List[List[bytes]]:
    """What a socket that knows nothing of links receives, without the sender's address."""
    found = []
    while len(found) < num:
        assert socket.poll(5000)
        found.append(socket.recv_multipart()[1:])
    return found


def test_many_messages_are_one_transmission(tmp_path: Path) -> None:
    socket = sockets.router(sockets.context(), "ipc://%s/s" % tmp_path, 1 << 20)
    peer = ZmqLink.connect("ipc://%s/s" % tmp_path)
    with peer.together():
        for _ in range(MAX_TOGETHER + 1):
            peer.send(Ping())
        assert not socket.poll(100), "nothing leaves before the end"
    with peer.together():
        peer.send(Ping())
    with peer.together():
        pass
    several, last, single = transmissions(socket, 3)
    assert len(several) == 1 + MAX_TOGETHER and several[0] == b"" and b"ping" in several[1]
    assert len(last) == len(single) == 1 and not socket.poll(100)
    peer.close()
    socket.close(0)


def test_they_arrive_in_order_around_one_with_arrays(links: Pair) -> None:
    service, peer = links
    with peer.together():
        sent = [peer.send(Ping()), peer.send(Ping())]
        large = np.arange(1 << 16, dtype=np.float32)
        sent.append(peer.send(Step(np.zeros(1, np.int32), large)))
        with peer.together():
            sent.append(peer.send(Ping()))
        sent.append(peer.send(Ping()))
    assert ids(service, 5) == sent == [1, 2, 3, 4, 5]


def test_each_receiver_gets_its_own(links: Pair) -> None:
    service, peer = links
    other = ZmqLink.connect(service.endpoint)
    addresses = []
    for link in (peer, other):
        link.send(Ping())
        addresses.append(next(iter_one(service)).peer)
    with service.together():
        for number in range(6):
            service.send(Ping(), to=addresses[number % 2], re=number)
        service.send(Ping(), to=b"nobody", re=9)  # dropped, as all that cannot be sent
    for link, expected in ((peer, [0, 2, 4]), (other, [1, 3, 5])):
        assert [next(iter_one(link)).re for _ in range(3)] == expected
    other.close()


def iter_one(link: ZmqLink) -> Iterator[Any]:
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline:
        yield from drain(link, 1)
        time.sleep(0.001)


def test_who_takes_one_at_a_time_does_not_wait_for_the_rest(links: Pair) -> None:
    service, peer = links
    poller = Poller()
    poller.add(service)
    with peer.together():
        for _ in range(3):
            peer.send(Ping())
    for number in range(3):
        began = time.monotonic()
        assert poller.wait(20.0) and time.monotonic() - began < 10.0
        (envelope,) = drain(service, 1)
        assert envelope.id == number + 1
    assert not poller.wait(0.0)


def test_a_bad_one_among_them_is_counted_and_the_others_arrive(links: Pair) -> None:
    service, peer = links
    middle = [b"", b"\xc1", header(2, "unheard_of"), header(3, v=2)]
    peer.socket.send_multipart([b"", header(1), *middle, header(4)])
    assert ids(service, 2) == [1, 4]
    assert service.rejected == {"wire": 3, "version": 1}


@pytest.mark.parametrize("num", [0, MAX_TOGETHER + 1])
def test_none_or_too_many_are_refused_as_one(links: Pair, num: int) -> None:
    service, peer = links
    peer.socket.send_multipart([b"", *(header(id) for id in range(num))])
    peer.send(Ping(), id=100)
    assert ids(service, 1) == [100] and service.rejected == {"wire": 1}


def test_an_error_inside_loses_nothing_that_was_sent(links: Pair) -> None:
    service, peer = links
    with pytest.raises(RuntimeError, match="mine"), peer.together():
        peer.send(Ping())
        raise RuntimeError("mine")
    peer.send(Ping())
    assert ids(service, 2) == [1, 2]


def test_one_inside_the_process_passes_them_at_once() -> None:
    here, there = local_pair()
    with here.together():
        here.send(Ping())
        assert isinstance(there.recv().message, Ping)


def test_a_key_revoked_between_two_of_them_stops_the_second(tmp_path: Path) -> None:
    server = keys.load(make_key(tmp_path, "broker", "broker"))
    key = keys.load(make_key(tmp_path, "act", "actor"))
    gate = Gate(tmp_path)
    bound = gate.bind("tcp://127.0.0.1:0", "store", server)
    dialled = ZmqLink.connect(bound.endpoint, key=key)
    with dialled.together():
        for _ in range(3):
            dialled.send(Ping())
    assert ids(bound, 1) == [1]
    revoke(tmp_path, "act")
    deadline = time.monotonic() + 5.0
    while not gate.allowed.get(key.public.decode()).revoked and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ids(bound, 1, 0.3) == []
    assert gate.counts[Refusal("store", "revoked", "actor")] == 2 and not bound.rejected
    dialled.close()
    bound.close()
    gate.close()
