"""Peers that dial in, answer late, say nonsense, get killed: real sockets and processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hub_kit import Actor, Log, Script

from rollbus_core.config.models import EnvConfig
from rollbus_core.service import Service
from rollbus_simulator.episodes import EpisodeList, TrainingEpisodes
from rollbus_simulator.hub import Hub
from rollbus_wire.link import local_pair
from rollbus_wire.messages import (
    PROTOCOL,
    Attached,
    Fault,
    Goodbye,
    Hello,
    Outcome,
    Ping,
    Reset,
    Step,
    Tick,
    Welcome,
)
from rollbus_wire.peer import Peer
from rollbus_wire.polling import Poller, wait_reply
from rollbus_wire.spec import ActionSpec
from rollbus_wire.zmq_link import ZmqLink

Started = Callable[..., tuple[Hub, Actor]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Started]:
    """Makes started hubs that peers dial at ``hub._peer_link.endpoint``; stops them."""
    hubs: list[Hub] = []

    def make(endpoint: str = "", *, episodes: Any = None, record: bool = True, **given: Any):  # type: ignore[no-untyped-def]
        rows, slices = given.pop("num_rows", 1), given.pop("num_slices", 1)
        command = given.pop("worker_command", None)
        mine, theirs = local_pair()
        link = ZmqLink.bind(endpoint or f"ipc://{tmp_path}/peers-{len(hubs)}")
        hub = Hub(
            "hub-0", 0, EnvConfig(**{"placement": "dial_in", **given}), num_rows=rows,
            num_slices=slices, episodes=episodes or TrainingEpisodes(1), data_links=[mine],
            worker_command=command, peer_link=link, record=record, log=Log(),
        )  # fmt: skip
        hub.start(Poller())
        hubs.append(hub)
        return hub, Actor(theirs)

    yield make
    for hub in hubs:
        hub.stop()


def until(hub: Service, condition: Callable[[], Any], timeout_s: float = 20.0, *peers: Any) -> None:
    """Turn ``hub`` (and peers of this process) until ``condition``."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s"
        busy = hub.poll()
        for peer in peers:
            busy |= bool(peer.poll())
        if not busy:
            time.sleep(0.002)


class Dialled:
    """A real `Peer` over a real socket, in this process."""

    def __init__(self, hub: Hub, env: Script, name: str = "peer") -> None:
        assert isinstance(hub._peer_link, ZmqLink)
        self.link = ZmqLink.connect(hub._peer_link.endpoint)
        self.peer = Peer(env, self.link, name)
        self.peer.dial()
        self.poll = self.peer.poll


def ask(hub: Hub, link: ZmqLink, message: Any) -> Any:
    """Send and wait for the answer while the hub turns."""
    request = link.send(message)
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        hub.poll()
        try:
            return wait_reply(link, request, 0.01)
        except TimeoutError:
            pass
        except Exception as error:  # noqa: BLE001 - a fault is an answer here
            if type(error).__name__ != "DeadlineExceeded":
                return error
    raise AssertionError("no answer")


def hello(spec: Any = None, **fields: Any) -> Hello:
    spec = (spec or Script(1).spec).to_data()
    return Hello(**{"protocol": list(PROTOCOL), "spec": spec, "num_rows": 1, **fields})


def dial(hub: Hub) -> ZmqLink:
    assert isinstance(hub._peer_link, ZmqLink)
    return ZmqLink.connect(hub._peer_link.endpoint)


def test_rows_of_two_peers_make_one_slice(start: Started) -> None:
    hub, actor = start(num_rows=5)
    actor.attach("hub-0/0")
    one = Dialled(hub, Script(2), "one")
    until(hub, lambda: len(hub._peers.sessions) == 1, 5, one)
    assert not actor.read() and hub.state == "start"
    two = Dialled(hub, Script(4), "two")
    until(hub, lambda: any(isinstance(m, Tick) for m in actor.got + actor.read()), 5, one, two)
    assert hub.state == "run"
    tick = next(m for m in actor.got if isinstance(m, Tick))
    assert tick.rows.tolist() == [0, 1, 2, 3, 4]
    actor.act(tick, [10, 11, 12, 13, 14])
    actor.got.clear()
    until(hub, lambda: actor.read(), 5, one, two)
    assert one.peer.env.actions == [[10], [11]]  # type: ignore[attr-defined]
    assert two.peer.env.actions == [[12], [13], [14], []]  # type: ignore[attr-defined]
    (session,) = [s for s in hub._peers.sessions if s.name == "two"]
    assert session.free == [3]


def test_lost_rows_are_taken_by_free_rows(start: Started) -> None:
    hub, actor = start(num_rows=2)
    one, two = Dialled(hub, Script(2), "one"), None
    actor.attach("hub-0/0")
    until(hub, lambda: actor.read() and len(actor.got) >= 2, 5, one)
    two = Dialled(hub, Script(2), "two")
    until(hub, lambda: len(hub._peers.sessions) == 2, 5, one, two)
    tick = actor.got[-1]
    assert isinstance(tick, Tick)
    actor.act(tick)
    hub.poll()  # the step is under way
    actor.got.clear()
    one.link.send(Goodbye("leaves"))
    until(hub, lambda: actor.read(), 5, two)
    cut = actor.got[0]
    assert isinstance(cut, Tick) and cut.interrupted.tolist() == [True, True]
    assert cut.num_steps.tolist() == [0, 0] and len(cut.final) == 0
    assert cut.step.tolist() == [0, 0] and set(cut.episode).isdisjoint(tick.episode)
    assert hub.counters.interrupted == 2 and hub.counters.peers_lost == 1


@pytest.mark.parametrize(
    ("message", "code", "words"),
    [
        (hello(protocol=[9, 0]), "version", ["9.0", "1.0"]),
        (hello(num_rows=0), "spec", ["0 rows"]),
        (hello(Script(1, time_limit=8).spec), "spec", ["time_limit", "8", "0"]),
        (
            hello(Script(1, action=ActionSpec("discrete", num=[7])).spec),
            "spec",
            ["action.num", "[7]", "[1000]"],
        ),
    ],
)
def test_refused_peers_are_told_why(start: Started, message: Hello, code: str, words: list[str]) -> None:
    hub, _ = start(num_rows=2)
    first = Dialled(hub, Script(1))
    until(hub, lambda: hub._peers.sessions, 5, first)
    answer = ask(hub, dial(hub), message)
    assert answer.code == code
    for word in words:
        assert word in str(answer)
    assert len(hub._peers.sessions) == 1


def test_strangers_are_told_to_say_hello(start: Started) -> None:
    hub, _ = start()
    assert ask(hub, dial(hub), Ping()).code == "unknown-peer"


def welcomed(hub: Hub) -> ZmqLink:
    """A hand-driven peer."""
    link = dial(hub)
    assert isinstance(ask(hub, link, hello()), Welcome)
    return link


def await_kind(hub: Hub, link: ZmqLink, kind: type) -> tuple[Any, int]:
    got: list[Any] = []

    def came() -> bool:
        envelope = link.recv()
        if envelope is not None and isinstance(envelope.message, kind):
            got.append((envelope.message, envelope.id))
        return bool(got)

    until(hub, came, 5)
    return got[0]


def obs(rows: np.ndarray) -> dict[str, np.ndarray]:
    return {"obs": np.zeros((len(rows), 2), np.float32)}


def test_no_outcome_in_time_ends_the_session(start: Started) -> None:
    hub, actor = start(step_timeout_s=0.3)
    link = welcomed(hub)
    message, request = await_kind(hub, link, Reset)
    link.send(Outcome(message.rows, obs(message.rows)), re=request)
    actor.attach("hub-0/0")
    until(hub, lambda: any(isinstance(m, Tick) for m in actor.read()), 5)
    actor.act(actor.got[-1])  # type: ignore[arg-type]
    message, request = await_kind(hub, link, Step)
    goodbye, _ = await_kind(hub, link, Goodbye)
    assert "step_timeout_s" in goodbye.reason
    assert hub.counters.interrupted == 1 and not hub._peers.sessions
    n = np.zeros(1, bool)
    link.send(Outcome(message.rows, obs(message.rows), np.zeros(1, np.float32), n, n), re=request)
    until(hub, lambda: hub.counters.late_outcomes == 1, 5)


def test_an_outcome_against_the_spec_ends_the_session(start: Started) -> None:
    hub, _ = start()
    link = welcomed(hub)
    message, request = await_kind(hub, link, Reset)
    link.send(Outcome(message.rows, {"obs": np.zeros((1, 3), np.float32)}), re=request)
    fault, _ = await_kind(hub, link, Fault)
    assert fault.code == "spec" and "[1, 3]" in fault.text and "[1, 2]" in fault.text
    assert not hub._peers.sessions


def test_a_tick_closes_without_its_late_rows(start: Started) -> None:
    hub, actor = start(num_rows=2, tick_deadline_s=0.05)
    quick, slow = Dialled(hub, Script(1), "quick"), None
    until(hub, lambda: hub._peers.sessions, 5, quick)
    slow = Dialled(hub, Script(1), "slow")
    actor.attach("hub-0/0")
    until(hub, lambda: any(isinstance(m, Tick) for m in actor.read()), 5, quick, slow)
    tick = actor.got[-1]
    assert isinstance(tick, Tick) and tick.rows.tolist() == [0, 1]
    actor.act(tick)
    began = time.monotonic()
    actor.got.clear()
    until(hub, lambda: actor.read(), 5, quick)
    assert time.monotonic() - began >= 0.05
    early = actor.got[-1]
    assert isinstance(early, Tick) and early.rows.tolist() == [0] and early.num_steps.tolist() == [1]
    until(hub, lambda: slow.poll(), 5)
    actor.act(early)
    actor.got.clear()
    until(hub, lambda: actor.read(), 5, quick, slow)
    both = actor.got[-1]
    assert isinstance(both, Tick) and both.rows.tolist() == [0, 1] and both.step.tolist() == [2, 1]


def test_a_straddling_outcome_belongs_to_nobody(start: Started) -> None:
    hub, actor = start()
    peer = Dialled(hub, Script(1))
    actor.attach("hub-0/0")
    until(hub, lambda: any(isinstance(m, Tick) for m in actor.read()), 5, peer)
    actor.act(actor.got[-1])  # type: ignore[arg-type]
    hub.poll()
    actor.got.clear()
    actor.attach("hub-0/0")  # the same actor anew: a new fence
    until(hub, lambda: any(isinstance(m, Tick) for m in actor.got + actor.read()), 5, peer)
    answer, tick = actor.got
    assert isinstance(answer, Attached) and answer.fence == 2 and isinstance(tick, Tick)
    assert tick.num_steps.tolist() == [0] and tick.reward.tolist() == [[0]]
    assert tick.step.tolist() == [1]  # the step was taken all the same
    assert hub.counters.straddled == 1


CARTPOLE = (
    "import sys, gymnasium; from rollbus_wire.peer import run_env; "
    "run_env(lambda: gymnasium.make('CartPole-v1'), sys.argv[1], num_rows=int(sys.argv[2]))"
)


def cartpole(endpoint: str, rows: int) -> list[str]:
    return [sys.executable, "-c", CARTPOLE, endpoint, str(rows)]


def answer_all(actor: Actor) -> list[Tick]:
    ticks = actor.ticks()
    for tick in ticks:
        actor.act(tick)
    return ticks


def test_dial_in_over_tcp(start: Started) -> None:
    hub, actor = start("tcp://127.0.0.1:0", num_rows=2)
    assert isinstance(hub._peer_link, ZmqLink)
    process = subprocess.Popen(cartpole(hub._peer_link.endpoint, 2))
    try:
        actor.attach("hub-0/0")
        until(hub, lambda: answer_all(actor) and hub.counters.episodes >= 4, 40)
        assert hub.spec is not None and hub.spec.time_limit == 500
        assert 8 <= np.mean(hub.counters.lengths) <= 11  # always to the left: about 9.3 steps
        hub.drain()
        hub.stop()
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()


def test_a_killed_worker_is_replaced(start: Started) -> None:
    hub, actor = start(num_rows=4, num_slices=2, placement="workers", workers=2, worker_command=cartpole)
    assert hub._workers is not None
    seen: list[Tick] = []

    def turn(condition: Callable[[], Any]) -> None:
        def check() -> Any:
            seen.extend(answer_all(actor))
            return condition()

        until(hub, check, 40)

    for name in hub.slice_names:
        actor.attach(name)
    turn(lambda: hub.counters.episodes >= 4)
    # Each worker has one row of each slice.
    assert all(len({id(s) for s in each.seats.sessions}) == 2 for each in hub.slices.values())
    pid = hub._workers.processes[0].pid
    os.kill(pid, signal.SIGKILL)
    turn(lambda: hub.counters.peers_lost == 1)
    assert hub.counters.interrupted == 2
    seen.clear()
    turn(
        lambda: (
            hub.stats()["peers"] == 2 and {t.slice for t in seen if len(t.rows) == 2} == {*hub.slice_names}
        )
    )
    assert hub._workers.processes[0].pid != pid
    for name in hub.slice_names:
        # The first that is heard of a row again: it was cut, or had ended just before.
        back = next(t for t in seen if t.slice == name and len(t.rows) == 2)
        new = int(np.flatnonzero(back.step == 0)[0])
        assert back.interrupted[new] != back.terminated[new]
        assert back.interrupted[new] == (back.num_steps[new] == 0)
    began = time.monotonic()
    processes = list(hub._workers.processes)
    hub.stop()
    assert time.monotonic() - began < 4
    assert all(p.returncode is not None for p in processes)


def test_workers_that_cannot_start_end_the_hub(start: Started) -> None:
    from rollbus_wire.errors import RollbusError

    hub, _ = start(
        placement="workers", worker_command=lambda endpoint, rows: [sys.executable, "-c", "exit(3)"]
    )
    with pytest.raises(RollbusError, match="code 3"):
        until(hub, lambda: False, 20)


def test_a_list_survives_a_killed_worker(start: Started) -> None:
    listed = EpisodeList(3, 6)
    hub, actor = start(num_rows=2, placement="workers", workers=2, worker_command=cartpole, episodes=listed)
    assert hub._workers is not None
    actor.attach("hub-0/0")
    until(hub, lambda: answer_all(actor) and len(listed.results) >= 1, 40)
    os.kill(hub._workers.processes[0].pid, signal.SIGKILL)
    until(hub, lambda: answer_all(actor) is not None and listed.done, 40)
    assert [r["id"] for r in listed.results] == list(range(6))
    assert not any(r["lost"] for r in listed.results)
