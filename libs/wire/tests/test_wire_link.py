"""Links over real sockets and inside the process."""

from __future__ import annotations

import time

import numpy as np
import pytest
import zmq

from rollbus_wire import codec, sockets
from rollbus_wire.errors import BindRefused, DeadlineExceeded, FaultReceived, PeerLost, WireError
from rollbus_wire.link import local_pair
from rollbus_wire.messages import Fault, Ping, Pong, Step
from rollbus_wire.polling import Poller, drain, wait_reply
from rollbus_wire.zmq_link import ZmqLink


@pytest.fixture(params=["ipc", "tcp"])
def endpoint(request, tmp_path):
    return "ipc://%s/s" % tmp_path if request.param == "ipc" else "tcp://127.0.0.1:0"


@pytest.fixture()
def links(endpoint):
    hub = ZmqLink.bind(endpoint, "run-1", "hub")
    peer = ZmqLink.connect(hub.endpoint, "run-1", "peer")
    yield hub, peer
    peer.close()
    hub.close()


def receive(link, timeout_s=5.0):
    poller = Poller()
    poller.add(link)
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        envelope = link.recv()
        if envelope is not None:
            return envelope
        poller.wait(0.05)
    return None


def test_request_and_reply(links):
    hub, peer = links
    actions = np.arange(3000, dtype=np.float32)
    request = peer.send(Step(rows=np.arange(2, dtype=np.int32), actions=actions))
    envelope = receive(hub)
    assert (envelope.id, envelope.run, envelope.sender, envelope.re) == (request, "run-1", "peer", 0)
    np.testing.assert_array_equal(envelope.message.actions, actions)
    hub.send(Pong(), to=envelope.peer, re=envelope.id)
    assert isinstance(wait_reply(peer, request, 5), Pong)


def test_ids_grow_and_can_be_repeated(links):
    _, peer = links
    first = peer.send(Ping())
    assert peer.send(Ping()) == first + 1
    assert peer.send(Ping(), id=first) == first


def test_a_late_reply_is_not_taken_for_the_next_one(links):
    hub, peer = links
    first = peer.send(Ping())
    envelope = receive(hub)
    with pytest.raises(DeadlineExceeded):
        wait_reply(peer, first, 0.05)
    second = peer.send(Ping())
    hub.send(Fault("late", "answer to the first"), to=envelope.peer, re=first)
    hub.send(Pong(), to=envelope.peer, re=second)
    assert isinstance(wait_reply(peer, second, 5), Pong)


def test_a_fault_as_answer_is_raised(links):
    hub, peer = links
    request = peer.send(Ping())
    envelope = receive(hub)
    hub.send(Fault("spec", "no such thing"), to=envelope.peer, re=request)
    with pytest.raises(FaultReceived, match="no such thing") as caught:
        wait_reply(peer, request, 5)
    assert caught.value.code == "spec"


def test_messages_of_another_run_are_refused_and_counted(links):
    hub, peer = links
    peer.run = "run-2"
    peer.send(Ping())
    assert receive(hub, 0.5) is None
    peer.run = ""
    answer = receive(peer)
    assert answer.message.code == "foreign-run" and "run-2" in answer.message.text
    assert hub.rejected == {"foreign-run": 1}


def raw(peer, **header):
    base = {"v": 1, "k": "ping", "run": "run-1", "id": 1, "re": 0, "from": "x", "b": {}}
    peer.socket.send_multipart(codec.pack(dict(base, **header)))


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        ({"v": 2}, "version", "protocol 2, this side 1.0"),
        ({"v": None}, "version", "protocol None"),
        ({"k": "unheard_of"}, "wire", "unheard_of"),
        ({"k": "step"}, "wire", "missing"),
        ({"id": "x"}, "wire", "envelope"),
        ({"from": 3}, "wire", "envelope"),
        ({"b": 3}, "wire", "not a map"),
    ],
)
def test_bad_envelopes_are_answered_and_the_session_goes_on(links, change, code, text):
    hub, peer = links
    raw(peer, **change)
    raw(peer)
    assert isinstance(receive(hub).message, Ping)
    assert hub.rejected == {code: 1}
    fault = receive(peer).message
    assert fault.code == code and text in fault.text


def test_unknown_envelope_and_message_fields_are_ignored(links):
    hub, peer = links
    raw(peer, newer="field", b={"newer": [1, 2]})
    assert isinstance(receive(hub).message, Ping)
    assert hub.rejected == {}


@pytest.mark.parametrize("frames", [[b"garbage"], [b""], [b"\x80"], [b"\x01"], [b"a", b"b", b"c"]])
def test_garbage_does_not_end_the_session(links, frames):
    hub, peer = links
    peer.socket.send_multipart(frames)
    peer.send(Ping())
    assert isinstance(receive(hub).message, Ping)
    assert sum(hub.rejected.values()) == 1


def test_sending_to_nobody_fails(endpoint):
    hub = ZmqLink.bind(endpoint)
    with pytest.raises(PeerLost):
        hub.send(Ping(), to=b"nobody")
    hub.close()


def test_a_second_bind_is_refused():
    first = ZmqLink.bind("tcp://127.0.0.1:0")
    with pytest.raises(BindRefused, match="in use"):
        ZmqLink.bind(first.endpoint)
    first.close()


@pytest.mark.parametrize(
    "address", ["tcp://0.0.0.0:0", "tcp://*:0", "tcp://10.0.0.1:5", "udp://x", "ipc://", "x"]
)
def test_addresses_that_strangers_reach_are_refused(address):
    with pytest.raises(BindRefused):
        sockets.check_bind(address)


def test_another_loopback_address_is_really_bound():
    link = ZmqLink.bind("tcp://127.0.0.2:0")
    assert link.endpoint.startswith("tcp://127.0.0.2:")
    link.close()


def test_a_long_socket_path_is_explained():
    with pytest.raises(BindRefused, match="ROLLBUS_RUNTIME_DIR"):
        sockets.check_bind("ipc:///" + "x" * 101)


def test_an_unusable_address_is_named():
    with pytest.raises(WireError, match="nonsense"):
        ZmqLink.connect("nonsense://here")


def test_a_restarted_listener_is_reached_again(tmp_path):
    endpoint = "ipc://%s/s" % tmp_path
    hub = ZmqLink.bind(endpoint)
    peer = ZmqLink.connect(endpoint)
    peer.send(Ping())
    assert receive(hub) is not None
    hub.close()
    time.sleep(0.1)
    hub = ZmqLink.bind(endpoint)
    deadline = time.monotonic() + 5
    got = None
    while got is None and time.monotonic() < deadline:
        peer.send(Ping())
        got = receive(hub, 0.1)
    assert got is not None
    peer.close()
    hub.close()


def test_a_local_pair_hands_over_the_object():
    a, b = local_pair("run", ("left", "right"))
    message = Step(np.arange(2), np.arange(2))
    request = a.send(message)
    envelope = b.recv()
    assert envelope.message is message
    assert (envelope.sender, envelope.run, envelope.id) == ("left", "run", request)
    b.send(Pong(), re=request)
    assert isinstance(wait_reply(a, request, 1), Pong)
    assert b.recv() is None
    a.close()
    with pytest.raises(PeerLost):
        a.send(message)


def test_draining_takes_no_more_than_are_awaited():
    a, b = local_pair()
    sent = [a.send(Ping()) for _ in range(5)]
    assert [e.id for e in drain(b, 2)] == sent[:2]
    assert [e.id for e in drain(b)] == sent[2:]


def test_a_message_that_cannot_travel_leaves_no_trace_in_the_next_one(links):
    hub, peer = links
    large = np.arange(9000, dtype=np.float64)
    with pytest.raises(WireError, match="cannot travel"):
        peer.send(Step(rows=large, actions=object()))
    peer.send(Step(rows=np.arange(2, dtype=np.int32), actions=large))
    message = receive(hub).message
    np.testing.assert_array_equal(message.rows, [0, 1])
    np.testing.assert_array_equal(message.actions, large)


def test_the_poller_waits_on_local_and_other_links(tmp_path):
    a, b = local_pair()
    hub = ZmqLink.bind("ipc://%s/s" % tmp_path)
    peer = ZmqLink.connect(hub.endpoint)
    poller = Poller()
    poller.add(b)
    poller.add(hub)
    assert not poller.wait(0.01)
    a.send(Ping())
    assert poller.wait(5)
    assert len(list(drain(b))) == 1
    peer.send(Ping())
    assert poller.wait(5)
    poller.remove(hub)
    poller.remove(b)
    peer.close()
    hub.close()


def test_closing_flushes_what_was_sent(tmp_path):
    hub = ZmqLink.bind("ipc://%s/s" % tmp_path)
    peer = ZmqLink.connect(hub.endpoint)
    for _ in range(100):
        peer.send(Ping())
    peer.close()
    count = 0
    while receive(hub, 0.5) is not None:
        count += 1
    assert count == 100
    hub.close()


def test_every_socket_has_a_bounded_linger(links):
    for link in links:
        assert link.socket.getsockopt(zmq.LINGER) == sockets.LINGER_MS
