"""The peer's state machine over local links and sockets, and a peer in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from wire_examples import Walk

from rollbus_wire import codec
from rollbus_wire.client import Client
from rollbus_wire.env import Rows
from rollbus_wire.errors import DeadlineExceeded, FaultReceived, PeerLost, VersionMismatch
from rollbus_wire.link import local_pair
from rollbus_wire.messages import (
    Fault,
    GetState,
    Goodbye,
    Hello,
    Observe,
    Outcome,
    Ping,
    Pong,
    Reset,
    SetState,
    Step,
    Welcome,
)
from rollbus_wire.peer import KEEP_REPLIES, Peer, run_env
from rollbus_wire.polling import drain
from rollbus_wire.zmq_link import ZmqLink

ROWS = np.arange(2, dtype=np.int32)
SEEDS = np.array([5, 6], np.int64)
ONES = np.ones((2, 1), np.float32)


class Session:
    """A peer over a local link, and the hub's end."""

    def __init__(self, env=None):
        self.env = env or Rows([Walk(), Walk()])
        self.hub, theirs = local_pair("run", ("hub", "peer"))
        self.peer = Peer(self.env, theirs, "walker")
        self.peer.dial()
        self.hello = self.hub.recv().message

    def ask(self, message, id=0):
        request = self.hub.send(message, id=id)
        assert self.peer.poll()
        (envelope,) = drain(self.hub)
        assert envelope.re == request
        return envelope.message


def test_hello_states_spec_and_rows():
    hello = Session().hello
    assert isinstance(hello, Hello)
    assert (hello.num_rows, hello.name, hello.protocol) == (2, "walker", [1, 0])
    assert hello.spec["name"] == "Walk"


def test_an_episode():
    session = Session()
    outcome = session.ask(Reset(ROWS, SEEDS))
    assert outcome.rows.tolist() == [0, 1] and outcome.reward is None
    step = session.ask(Step(ROWS, ONES))
    np.testing.assert_allclose(step.reward, outcome.obs["obs"][:, 0] + 1.5, rtol=1e-6)
    assert step.terminated.dtype == np.bool_ and step.success.tolist() == [False, False]
    unseen = session.ask(Step(ROWS, ONES, observe=False))
    assert unseen.obs is None
    assert session.ask(Observe(ROWS[1:])).obs["obs"][0, 1] == 2
    assert isinstance(session.ask(Ping()), Pong)


def test_a_repeated_request_is_answered_but_not_done_again():
    session = Session()
    session.ask(Reset(ROWS, SEEDS))
    first = session.ask(Step(ROWS, ONES), id=100)
    assert session.ask(Step(ROWS, ONES), id=100) is first
    assert session.ask(Observe(ROWS)).obs["obs"][0, 1] == 1


def test_a_request_that_was_forgotten_is_refused_not_repeated():
    session = Session()
    session.ask(Reset(ROWS, SEEDS), id=100)
    for i in range(KEEP_REPLIES):
        session.ask(Observe(ROWS), id=101 + i)
    assert session.ask(Reset(ROWS, SEEDS), id=100).code == "wire"
    assert isinstance(session.ask(Observe(ROWS), id=101), Outcome)


def test_an_exception_becomes_a_fault_and_the_session_goes_on():
    session = Session()
    session.ask(Reset(ROWS, SEEDS))
    for env in session.env.envs:
        env.place = "broken"
    fault = session.ask(Step(ROWS, ONES))
    assert isinstance(fault, Fault) and fault.code == "env"
    assert "row 1" in fault.text and fault.where == "Walk step, rows [0, 1]"
    assert "TypeError" in fault.traceback and "wire_examples" in fault.traceback
    assert isinstance(session.ask(Reset(ROWS, SEEDS)), Outcome)


def test_the_exception_of_one_row_is_told_beside_the_outcome_of_the_others():
    session = Session()
    session.ask(Reset(ROWS, SEEDS))
    session.env.envs[1].place = "broken"
    outcome = session.ask(Step(ROWS, ONES))
    assert isinstance(outcome, Outcome) and np.isnan(outcome.reward).tolist() == [False, True]
    assert "row 1 failed in step: TypeError" in outcome.failure and "wire_examples" in outcome.traceback
    assert isinstance(session.ask(Reset(ROWS[1:], SEEDS[1:])), Outcome)
    assert session.ask(Step(ROWS, ONES)).failure is None


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (Step(ROWS, ONES * 2), "never clipped"),
        (Step(ROWS, ONES * np.nan), "nan"),
        (Step(ROWS, ONES[:1]), "1 actions for 2 rows"),
        (Step(ROWS, np.ones((2, 2), np.float32)), "shape"),
        (Step(np.array([0, 2], np.int32), ONES), r"\[0, 2\]"),
        (Step(np.array([-1, 0], np.int32), ONES), "distinct"),
        (Step(np.array([1, 1], np.int32), ONES), "distinct"),
        (Step(np.array([[0, 1]], np.int32), ONES), "distinct"),
        (Step(np.array([0.0, 1.0]), ONES), "float64"),
        (Observe(np.zeros(0, np.int32)), "distinct"),
        (Reset(ROWS, SEEDS[:1]), "1 seeds for 2 rows"),
        (Reset(ROWS, SEEDS, [None]), "1 options for 2 rows"),
        (GetState(ROWS), "cannot give its state"),
        (SetState(ROWS, [b"", b""]), "cannot be put"),
        (SetState(ROWS, [b""]), "1 states for 2 rows"),
    ],
)
def test_bad_requests_change_nothing(message, text):
    import re

    session = Session()
    session.ask(Reset(ROWS, SEEDS))
    session.ask(Observe(ROWS))
    fault = session.ask(message)
    assert isinstance(fault, Fault) and re.search(text, fault.text), fault
    assert session.ask(Observe(ROWS)).obs["obs"][:, 1].tolist() == [0, 0]


def test_data_that_contradicts_the_spec_is_a_fault():
    env = Rows([Walk()])
    session = Session(env)
    env.observe = lambda rows: {"obs": np.zeros((1, 3), np.float32)}
    assert "[1, 3], the spec states float32 [1, 2]" in session.ask(Observe(ROWS[:1])).text
    env.observe = lambda rows: {"other": np.zeros((1, 2), np.float32)}
    assert "keys" in session.ask(Observe(ROWS[:1])).text
    env.get_state = lambda rows: ["text is fine on a local link"]
    assert isinstance(session.ask(GetState(ROWS[:1])), Outcome)


def test_refusal_goodbye_and_forgetting_close():
    for message, name in ((Fault("spec", "no"), "refusal"), (Goodbye(), "goodbye")):
        session = Session()
        session.hub.send(message)
        session.peer.poll()
        assert session.peer.closed and getattr(session.peer, name) is message
    session = Session()
    session.hub.send(Welcome(1, [1, 0]))
    session.hub.send(Fault("limit", "something else"))
    session.peer.poll()
    assert not session.peer.closed and session.peer.welcome is not None
    session.hub.send(Fault("unknown-peer", "who are you"))
    session.peer.poll()
    assert session.peer.forgotten


# --- over sockets -------------------------------------------------------------------------------


class Serving:
    """`run_env` in a thread."""

    def __init__(self, endpoint, make=Walk, **arguments):
        self.error = None
        self.stopping = threading.Event()
        self.env = Rows([make(), make()])

        def body():
            try:
                run_env(self.env, endpoint, stop=self.stopping.is_set, **arguments)
            except Exception as error:  # noqa: BLE001 - the test looks at it
                self.error = error

        self.thread = threading.Thread(target=body)
        self.thread.start()

    def end(self):
        self.stopping.set()
        self.thread.join(5)
        assert not self.thread.is_alive()
        assert all(env.closed for env in self.env.envs)


def test_run_env_serves_until_goodbye(endpoint):
    with Client(endpoint, run="run-7") as client:
        serving = Serving(endpoint, name="walker")
        spec = client.wait_peer(5)
        assert spec == serving.env.spec and client.num_rows == 2
        obs = client.reset(SEEDS)["obs"]
        result = client.step(ONES)
        np.testing.assert_allclose(result.reward, obs[:, 0] + 1.5, rtol=1e-6)
        assert client.step(ONES[:1], rows=[1], observe=False).obs is None
        assert client.observe([1])["obs"][0, 1] == 2
        assert 0 < client.ping() < 5
        with pytest.raises(FaultReceived, match="never clipped"):
            client.step(ONES * 9)
    serving.thread.join(5)
    assert serving.error is None
    serving.end()


def test_the_environment_may_come_first(endpoint):
    serving = Serving(endpoint)
    time.sleep(0.3)
    with Client(endpoint) as client:
        client.wait_peer(5)
    serving.end()


def test_a_late_outcome_is_discarded(endpoint):
    class Slow(Walk):
        def step(self, action):
            time.sleep(0.2)
            return super().step(action)

    with Client(endpoint, timeout_s=5) as client:
        serving = Serving(endpoint, Slow)
        client.wait_peer()
        client.reset(SEEDS)
        with pytest.raises(DeadlineExceeded):
            client.ask(Step(ROWS[:1], ONES[:1]), timeout_s=0.05)
        assert client.observe([0])["obs"][0, 1] == 1
        assert client.late == 1
    serving.end()


def test_a_request_repeated_over_the_wire_steps_once(endpoint):
    with Client(endpoint) as client:
        serving = Serving(endpoint)
        client.wait_peer(5)
        client.reset(SEEDS)
        one = client.ask(Step(ROWS, ONES), id=50)
        two = client.ask(Step(ROWS, ONES), id=50)
        np.testing.assert_array_equal(one.reward, two.reward)
        assert client.observe()["obs"][:, 1].tolist() == [1, 1]
    serving.end()


def test_a_restarted_hub_is_dialled_again(endpoint):
    client = Client(endpoint, heartbeat_s=0.2)
    serving = Serving(endpoint)
    client.wait_peer(5)
    client.link.close()
    with Client(endpoint, heartbeat_s=60) as second:
        second.wait_peer(10)
        assert second.reset(SEEDS)["obs"].shape == (2, 2)
    serving.end()


def test_a_hub_that_does_not_know_the_peer_is_dialled_again(endpoint):
    with Client(endpoint) as client:
        serving = Serving(endpoint)
        client.wait_peer(5)
        client.link.send(Fault("unknown-peer", "restarted"), to=client._peer)
        client.wait_peer(5)
        assert client.reset(SEEDS)["obs"].shape == (2, 2)
    serving.end()


def test_a_hub_of_another_major_version_is_refused_with_both_versions(endpoint):
    hub = ZmqLink.bind(endpoint)
    serving = Serving(endpoint)
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and not serving.error:
        for envelope in drain(hub):
            header = {"v": 2, "k": "fault", "b": {"code": "version", "text": "too old"}}
            hub.socket.send_multipart([envelope.peer] + codec.pack(header))
        time.sleep(0.02)
    hub.close()
    assert isinstance(serving.error, VersionMismatch)
    assert "protocol 2" in str(serving.error) and "1.0" in str(serving.error)
    serving.end()


def test_a_refusal_is_raised(endpoint):
    hub = ZmqLink.bind(endpoint)
    serving = Serving(endpoint)
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and not serving.error:
        for envelope in drain(hub):
            if isinstance(envelope.message, Hello):
                hub.send(Fault("spec", "observation 'a' is missing"), to=envelope.peer, re=envelope.id)
        time.sleep(0.02)
    hub.close()
    assert isinstance(serving.error, FaultReceived) and "'a' is missing" in str(serving.error)
    serving.end()


def test_another_run_is_refused(endpoint):
    with Client(endpoint, run="run-1") as client:
        serving = Serving(endpoint, run="run-2")
        with pytest.raises(DeadlineExceeded, match="no environment has dialled in"):
            client.wait_peer(0.5)
        serving.thread.join(5)
        assert isinstance(serving.error, FaultReceived) and "run-1" in str(serving.error)
    serving.end()


def test_the_client_says_who_is_missing(endpoint):
    with Client(endpoint) as client, pytest.raises(PeerLost, match="wait_peer"):
        client.reset(SEEDS)


# --- a process of its own -------------------------------------------------------------------------

SERVE = """
import sys
from wire_examples import Walk
from rollbus_wire.peer import run_env
run_env(Walk, sys.argv[1], num_rows=2)
"""


@pytest.fixture()
def process(endpoint):
    env = dict(os.environ, PYTHONPATH=os.pathsep.join([str(Path(__file__).parent)] + sys.path))
    process = subprocess.Popen([sys.executable, "-c", SERVE, endpoint], env=env)
    yield process
    if process.poll() is None:
        process.kill()
    process.wait()


def test_a_peer_in_another_process_computes_the_same(endpoint, process):
    here = Rows([Walk(), Walk()])
    with Client(endpoint) as client:
        client.wait_peer(20)
        np.testing.assert_array_equal(client.reset(SEEDS)["obs"], here.reset(ROWS, SEEDS, [])["obs"])
        for action in (0.5, -1.0, 1.0):
            there = client.step(ONES * action)
            mine = here.step(ROWS, ONES * np.float32(action), True)
            np.testing.assert_array_equal(there.obs["obs"], mine.obs["obs"])
            np.testing.assert_array_equal(there.reward, mine.reward)
    assert process.wait(5) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order(endpoint, process, number):
    with Client(endpoint) as client:
        client.wait_peer(20)
        process.send_signal(number)
        with pytest.raises(PeerLost, match="left"):
            while True:
                client.ping(2)
        assert process.wait(3) == 0


def test_a_killed_peer_is_replaced_by_the_next(endpoint, process):
    with Client(endpoint, timeout_s=1) as client:
        client.wait_peer(20)
        process.kill()
        process.wait()
        with pytest.raises((DeadlineExceeded, PeerLost)):
            client.reset(SEEDS)
        serving = Serving(endpoint)
        client.wait_peer(5)
        assert client.reset(SEEDS)["obs"].shape == (2, 2)
    serving.end()


def test_a_goodbye_with_again_waits_for_the_next_hub(endpoint):
    serving = Serving(endpoint)
    with Client(endpoint) as client:
        client.wait_peer(5)
        client.link.send(Goodbye("one evaluation is over", again=True), to=client._peer)
        client._peer = b""  # it has been said
    with Client(endpoint) as client:
        client.wait_peer(10)
        assert serving.thread.is_alive()
    serving.thread.join(5)
    serving.end()
