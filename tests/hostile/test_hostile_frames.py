"""What a refused message costs, and who sends too many of them."""

import gc
import time
import tracemalloc

import pytest
from nasty import MIB, NASTY, envelope

from rollbus_wire.errors import LimitExceeded, WireError
from rollbus_wire.header import bound_elements, check_values
from rollbus_wire.limits import (
    IGNORED_S,
    LOG_AGAIN_S,
    MAX_DEPTH,
    MAX_ELEMENTS_ASKED,
    MAX_REJECTED_PEERS,
    MESSAGES_PER_TURN,
    REJECTS_AT_ONCE,
)
from rollbus_wire.messages import Ping
from rollbus_wire.polling import drain
from rollbus_wire.rejects import Rejects
from rollbus_wire.zmq_link import ZmqLink

MAX_CPU_S, MAX_BYTES = 0.05, MIB


@pytest.fixture
def link(tmp_path):
    link = ZmqLink.bind(f"ipc://{tmp_path}/hub", "run-1")
    yield link
    link.close()


@pytest.mark.parametrize("name", NASTY)
def test_a_refusal_is_cheap(link, name):
    """CPU time and memory of opening the message, beside its own frames; the best of three."""
    frames, costs, peaks = NASTY[name], [], []
    for _ in range(3):
        gc.collect()
        began = time.process_time()
        with pytest.raises(WireError) as caught:
            link._open(list(frames), b"peer")
        costs.append(time.process_time() - began)
        tracemalloc.start()
        with pytest.raises(WireError):
            link._open(list(frames), b"peer")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert min(costs) < MAX_CPU_S
    assert min(peaks) < MAX_BYTES + (0 if "huge" in name else sum(map(len, frames)))
    assert len(str(caught.value)) < 2000


def test_elements_are_counted_before_anything_is_made():
    """Exactly: a list of n texts has n + 1 elements."""
    import msgpack

    for n in (1, 15, 16, 65535, 65536):
        header = msgpack.packb(["ab"] * n)
        bound_elements(header, n + 1)
        with pytest.raises(LimitExceeded):
            bound_elements(header, n)
    mixed = {"a": [1, -1, 300, 1 << 40, 1.5, None, True], "b": {"c": b"x" * 70_000, "d": "e" * 300}}
    # 1 map + 2 keys + list of 7 + map of 2: 1 + 2 + 1 + 7 + 1 + 2 + 2 = 16.
    # The text counts as 9 more, its 303 bytes with the head in units of 32.
    header = msgpack.packb(mixed)
    bound_elements(header, 16 + 9)
    with pytest.raises(LimitExceeded):
        bound_elements(header, 15 + 9)


def test_depth_is_bounded_exactly():
    value = []
    for _ in range(MAX_DEPTH - 1):
        value = [value]
    check_values(value)
    with pytest.raises(LimitExceeded):
        check_values([[1], value])


def test_who_sends_too_many_is_ignored_for_a_while_and_others_are_not():
    now = [0.0]
    rejects = Rejects(clock=lambda: now[0])
    answered = [rejects.add(WireError("no"), b"bad") for _ in range(REJECTS_AT_ONCE + 1)]
    assert answered == [True] * REJECTS_AT_ONCE + [False]
    assert rejects.ignores(b"bad") and not rejects.ignores(b"good")
    now[0] = IGNORED_S - 0.01
    assert rejects.ignores(b"bad")
    now[0] = IGNORED_S
    assert not rejects.ignores(b"bad") and rejects.add(WireError("no"), b"bad")
    assert rejects.counts == {"wire": REJECTS_AT_ONCE + 2, "ignored": 2}


def test_an_error_now_and_then_is_borne_for_ever():
    now = [0.0]
    rejects = Rejects(clock=lambda: now[0])
    for _ in range(1000):
        now[0] += 0.2
        assert rejects.add(WireError("no"), b"old")


def test_memory_of_peers_is_bounded():
    rejects = Rejects()
    for number in range(3 * MAX_REJECTED_PEERS):
        rejects.add(WireError("no"), b"%d" % number)
    assert len(rejects.peers) == MAX_REJECTED_PEERS


def test_refusals_are_logged_with_a_limit(caplog):
    now = [0.0]
    rejects = Rejects(clock=lambda: now[0])
    for _ in range(50):
        rejects.add(WireError("first"), b"a", "ipc://x")
    now[0] = LOG_AGAIN_S
    rejects.add(WireError("second"), b"a", "ipc://x")
    assert [r.getMessage() for r in caplog.records] == [
        "ipc://x: a message was refused (wire): first",
        "ipc://x: a message was refused (wire): second (and 49 more since the last line)",
    ]


def test_a_turn_takes_a_bounded_number_of_messages(link):
    """A peer that never stops sending does not keep a service in one turn."""
    peer = ZmqLink.connect(link.endpoint)
    for _ in range(2 * MESSAGES_PER_TURN):
        peer.send(Ping())
    found, deadline = [], time.monotonic() + 10
    while sum(found) < 2 * MESSAGES_PER_TURN and time.monotonic() < deadline:
        found.append(sum(1 for _ in drain(link)))
    assert sum(found) == 2 * MESSAGES_PER_TURN and max(found) <= MESSAGES_PER_TURN
    peer.close()


def test_large_messages_in_order_pass(link):
    """The limits are not in the way of what services say: 1000 slices, a heartbeat that lists them."""
    slices = [{"slice": f"hub-0/{n}", "rows": 1, "endpoint": "ipc:///run/user/1000/hub"} for n in range(1000)]
    frames = envelope("slices_changed", slices=slices)
    assert len(link._open(frames, b"p").message.slices) == 1000
    assert 7 * 1000 < MAX_ELEMENTS_ASKED
    stats = {"held": {s["slice"]: s["endpoint"] for s in slices}}
    frames = envelope("heartbeat", stage="run", since_s=0.0, deadline_s=1.0, stats=stats)
    assert link._open(frames, b"p").message.stats == stats
