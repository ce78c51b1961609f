"""A robot that does not trust its server: whatever a hub sends, only good actions reach the environment."""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path
from typing import Any, Iterator, List, Optional

import numpy as np
import pytest
import zmq
from wire_examples import Walk

from rollbus_wire import sockets
from rollbus_wire.codec import pack
from rollbus_wire.messages import (
    PROTOCOL,
    Fault,
    Hello,
    Message,
    Observe,
    Outcome,
    Reset,
    SetState,
    Step,
    Welcome,
)
from rollbus_wire.peer import REQUEST_BYTES, run_env
from rollbus_wire.zmq_link import ZmqLink

ROW = np.zeros(1, np.int32)


class Robot(Walk):
    """Keeps what reached its motors."""

    def __init__(self) -> None:
        super().__init__()
        self.moves: List[float] = []

    def step(self, action: np.ndarray) -> Any:
        self.moves.append(float(action[0]))
        return super().step(action)


class HostileHub:
    """A hub that sends what it likes to a robot in a thread of this process."""

    def __init__(self, folder: Path) -> None:
        self.link = ZmqLink.bind("ipc://%s/h" % folder)
        self.robot, self.ended = Robot(), []  # type: Robot, List[BaseException]
        self._stop = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        hello = self.receive(Hello)
        assert hello is not None

    def _run(self) -> None:
        try:
            run_env(self.robot, self.link.endpoint, stop=lambda: self._stop)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.ended.append(error)

    def receive(self, kind: Any, timeout_s: float = 10.0) -> Optional[Message]:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            envelope = self.link.recv()
            if envelope is None:
                time.sleep(0.002)
                continue
            self.peer = envelope.peer
            if isinstance(envelope.message, kind):
                return envelope.message
        return None

    def ask(self, message: Message) -> Message:
        request = self.link.send(message, to=self.peer)
        answer = self.receive((Outcome, Fault))
        assert answer is not None and request, "the robot still answers"
        return answer

    def raw(self, *frames: bytes) -> None:
        self.link.socket.send_multipart([self.peer, *frames])

    def close(self) -> None:
        self._stop = True
        self._thread.join(10)
        self.link.close()
        assert not self._thread.is_alive()


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HostileHub]:
    made = HostileHub(tmp_path)
    made.link.send(Welcome(1, list(PROTOCOL)), to=made.peer)
    assert isinstance(made.ask(Reset(ROW, np.array([3], np.int64))), Outcome)
    yield made
    made.close()


def test_good_actions_pass(hub: HostileHub) -> None:
    for value in (1.0, -1.0, 0.25):
        assert isinstance(hub.ask(Step(ROW, np.array([[value]], np.float32))), Outcome)
    assert hub.robot.moves == [1.0, -1.0, 0.25]


@pytest.mark.parametrize(
    "actions",
    [
        np.array([[np.nan]], np.float32), np.array([[np.inf]], np.float32), np.array([[-np.inf]], np.float32),
        np.array([[1.0001]], np.float32), np.array([[-2]], np.float32), np.array([[1e30]], np.float64),
        np.array([[1]], np.int64), np.array([[True]]), np.array([[0.5, 0.5]], np.float32),
        np.array([0.5], np.float32),
        np.array(0.5, np.float32), np.zeros((2, 1), np.float32), np.zeros((0, 1), np.float32),
        np.zeros((1, 1, 1), np.float32), np.zeros((1, 0), np.float32), np.full((1, 1), 255, np.uint8),
    ],
)  # fmt: skip
def test_bad_actions_never_reach_the_motors(hub: HostileHub, actions: np.ndarray) -> None:
    answer = hub.ask(Step(ROW, actions))
    assert isinstance(answer, Fault), answer
    assert hub.robot.moves == []
    assert isinstance(hub.ask(Step(ROW, np.array([[0.5]], np.float32))), Outcome), "it lives on"
    assert hub.robot.moves == [0.5]


@pytest.mark.parametrize(
    "message",
    [
        Step(np.array([1], np.int32), np.zeros((1, 1), np.float32)),
        Step(np.array([-1], np.int32), np.zeros((1, 1), np.float32)),
        Step(np.zeros(0, np.int32), np.zeros((0, 1), np.float32)),
        Step(np.zeros(2, np.int32), np.zeros((2, 1), np.float32)),
        Step(np.zeros((1, 1), np.int32), np.zeros((1, 1), np.float32)),
        Step(np.zeros(1, np.float32), np.zeros((1, 1), np.float32)),
        Step(np.array(0, np.int32), np.zeros((1, 1), np.float32)),
        Step(np.zeros(100000, np.int32), np.zeros((100000, 1), np.float32)),
        Reset(ROW, np.array([1.5])), Reset(ROW, np.array([[1]], np.int64)), Reset(ROW, np.zeros(0, np.int64)),
        Reset(ROW, np.array(1, np.int64)), Reset(ROW, np.zeros(1, np.int64), ["rm -rf"]),
        Reset(ROW, np.zeros(1, np.int64), [{}, {}]), SetState(ROW, []),
        Observe(np.array([7], np.int32)),
    ],
)  # fmt: skip
def test_bad_requests_are_refused(hub: HostileHub, message: Message) -> None:
    assert isinstance(hub.ask(message), Fault)
    assert hub.robot.moves == []
    assert isinstance(hub.ask(Observe(ROW)), Outcome)


def test_what_is_no_request_is_ignored(hub: HostileHub) -> None:
    """Unknown messages, other planes' messages, broken headers, another protocol."""
    for header in (
        {"v": 1, "k": "exec", "b": {"code": "x"}}, {"v": 1, "k": ["step"], "b": {}},
        {"v": 9, "k": "step", "b": {}},
        {"v": 1, "k": "step", "b": []}, {"v": 1, "k": "step", "b": {"rows": 1, "actions": 2}}, [1, 2], 7,
        {"v": 1, "k": "tick", "b": {}}, {"v": 1, "k": "outcome", "b": {"rows": ROW}},
        {"v": 1, "k": "hello", "b": {}}, {"v": 1, "k": "set_state", "b": {"rows": ROW, "states": ["text"]}},
    ):  # fmt: skip
        hub.raw(*pack(header))
    for frames in (
        [b""],
        [b"\xff" * 100],
        [b"\x80\x04\x95", b"x"],
        [b"\xdf\xff\xff\xff\xff"],
        [b"\x93" * 5000],
    ):
        hub.raw(*frames)
    answer = hub.ask(Observe(ROW))
    while isinstance(answer, Fault):  # to what was a request in part
        answer = hub.receive((Outcome, Fault)) or answer
    assert hub.robot.moves == [] and not hub.ended


@pytest.mark.parametrize("heartbeat_s", [float("nan"), float("inf"), -1.0, 0.0, 1e300])
def test_a_hubs_promise_counts_within_bounds(hub: HostileHub, heartbeat_s: float) -> None:
    from rollbus_wire.peer import MAX_HEARTBEAT_S, _patience_s

    assert 0.1 <= _patience_s(Welcome(1, [1, 0], "", heartbeat_s)) <= 3 * MAX_HEARTBEAT_S


def test_a_flood_costs_no_memory(hub: HostileHub, caplog: pytest.LogCaptureFixture) -> None:
    """Requests with new ids and ever new rows, faults with long texts: nothing is kept of them."""

    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def flood(count: int) -> None:
        for number in range(count):
            hub.ask(Step(np.full(50, number, np.int32), np.zeros((50, 1), np.float32)))
            hub.link.send(Fault("x" * 1000, "y" * 10000), to=hub.peer)

    with caplog.at_level(logging.CRITICAL, logger="rollbus.peer"):
        flood(100)
        before = resident()
        flood(600)
    assert resident() - before < 8 << 20
    assert hub.robot.moves == []


def test_a_frame_that_no_request_needs_ends_the_connection(hub: HostileHub) -> None:
    """It is dropped before it is in memory; the robot dials in anew."""
    hub.link.send(Welcome(1, list(PROTOCOL), heartbeat_s=0.3), to=hub.peer)
    hub.raw(b"\0" * (REQUEST_BYTES + (1 << 20)))
    hello = hub.receive(Hello, 20.0)
    assert hello is None or isinstance(hello, Hello)
    assert hub.robot.moves == [] and not hub.ended


def test_the_limit_of_frames_is_set_on_the_socket(tmp_path: Path) -> None:
    socket = sockets.dealer(zmq.Context.instance(), "ipc://%s/x" % tmp_path, max_frame_bytes=123)
    assert socket.getsockopt(zmq.MAXMSGSIZE) == 123
    socket.close(0)
