"""The broker as a process: real sockets, kill, restart, stop, HTTP."""

import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
import zmq
from broker_kit import QUEUE, REPLAY, ask, layout, open_table, read_rewards, ticket_request, write_chunk

from rollbus_broker.broker import Broker
from rollbus_core.config.models import BrokerConfig
from rollbus_core.member import Member
from rollbus_core.paths import RunPaths
from rollbus_core.slabs import SlabFolder
from rollbus_wire.errors import BindRefused, FaultReceived
from rollbus_wire.messages import (
    Assign,
    CheckpointSaved,
    Command,
    Consumed,
    Done,
    Evaluated,
    ListMembers,
    Notice,
    Ping,
    Pong,
    Sample,
    TableState,
    Ticket,
)  # fmt: skip
from rollbus_wire.polling import Poller, drain
from rollbus_wire.zmq_link import ZmqLink

SERVE = """
import signal, sys
from rollbus_broker.broker import Broker
from rollbus_core import service
from rollbus_core.config.models import BrokerConfig
from rollbus_core.paths import RunPaths
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
paths = RunPaths(sys.argv[1])
paths.create()
with paths.alive():
    broker = Broker(paths, BrokerConfig(heartbeat_s=0.1, lost_after_s=0.6))
    service.run([broker], should_stop=lambda: bool(stop), on_ready=lambda: print("ready", flush=True))
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run folder whose broker can be started, killed and started again."""
    monkeypatch.setenv("ROLLBUS_RUNTIME_DIR", str(tmp_path))
    run = Run(RunPaths(tmp_path / "run"))
    yield run
    run.close()


class Run:
    def __init__(self, paths):
        self.paths, self.links, self.members = paths, [], []
        self.process = None

    def start(self):
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(self.paths.root)], stdout=subprocess.PIPE, text=True
        )
        while (line := self.process.stdout.readline()) != "ready\n":
            assert line, "the broker did not start"

    def kill(self):
        self.process.kill()
        self.process.wait()

    def link(self, plane, sender=""):
        endpoint = self.paths.registry if plane == "registry" else self.paths.store_endpoint
        self.links.append(ZmqLink.connect(endpoint, self.paths.run_id, sender))
        return self.links[-1]

    def member(self, role, name="", **kw):
        member = Member(self.link("registry"), role, name or f"{role}-0", **kw)
        member.got = []
        self.members.append(member)
        return member

    def until(self, condition, timeout_s=5.0):
        """Turn all members until ``condition``."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, "timeout"
            for member in self.members:
                member.got += [envelope.message for envelope in member.poll()]
            time.sleep(0.01)

    def get(self, path):
        url = (self.paths.root / "http.txt").read_text().strip()
        try:
            with urllib.request.urlopen(url + path, timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def close(self):
        for link in self.links:
            link.close()
        if self.process is not None and self.process.poll() is None:
            self.kill()


def notice(number):
    return Notice("policy", [1, number], 0, number, 7, 100, "weights-policy")


def of(member, kind):
    return [m for m in member.got if isinstance(m, kind)]


def test_a_late_joiner_gets_the_newest_of_everything(run):
    """T17: who joins late misses nothing that counts."""
    run.start()
    learner = run.member("learner")
    run.until(lambda: learner.registered)
    learner.send(notice(1))
    learner.send(notice(2))
    learner.send(CheckpointSaved("c1", [1, 1], 10, 1))
    learner.send(CheckpointSaved("c2", [1, 2], 20, 2))
    assert isinstance(ask(learner.link, Ping()), Pong)  # all of it has arrived
    late, evaluator, launcher = run.member("actor"), run.member("evaluator"), run.member("launcher")
    run.until(lambda: late.registered and of(evaluator, CheckpointSaved) and of(launcher, CheckpointSaved))
    assert [n["version"] for n in late.registered.notices] == [[1, 2]]
    assert [c.path for c in of(evaluator, CheckpointSaved)] == ["c2"]
    learner.send(notice(3))
    evaluator.send(Evaluated("c2", [1, 2], 20, {"mean_return": 1.0}))
    run.until(lambda: of(late, Notice) and of(learner, Evaluated) and of(launcher, Evaluated))
    assert of(late, Notice)[0].version == [1, 3]


def test_a_killed_broker_comes_back_with_its_chunks(run):
    """T17: SIGKILL, a torn log, stale segments, members that rejoin."""
    run.start()
    held = {}
    hub = run.member("hub", slices=[{"slice": "s0", "rows": 8, "endpoint": "ipc://hub"}])
    actor = run.member("actor", stats=lambda: {"held": held})
    run.until(lambda: of(actor, Assign))
    first = of(actor, Assign)[0]
    assert first.assignment == [1, 1]
    held["s0"] = "ipc://hub"
    store, slabs = run.link("store", actor.link.sender), SlabFolder(run.paths.runtime)
    ask(store, open_table(QUEUE))
    ticket = ask(store, ticket_request())
    assert isinstance(ticket, Ticket)
    assert ask(store, write_chunk(slabs, ticket, layout(), 3.0, (1, 0))).sequence == 1
    run.kill()
    with open(run.paths.store / "log", "ab") as log:
        log.write(b"\x40\0\0\0half a record")
    (run.paths.runtime / "slab-77").write_bytes(b"stale")
    actor.got.clear()
    run.start()
    assert sorted(p.name for p in run.paths.runtime.glob("slab-*")) == [f"slab-{ticket.slab}"]
    learner = run.link("store")
    with pytest.raises(FaultReceived, match="the learner opens it anew"):
        ask(learner, Sample("main"))  # what was torn may have been of a batch that the learner has
    ask(learner, open_table(QUEUE))
    batch = ask(learner, Sample("main"))
    assert read_rewards(slabs, batch.chunks[0]) == {3.0}
    run.until(lambda: all(m.registered and m.registered.boot == 2 for m in (hub, actor)))
    deadline = time.monotonic() + 1.2
    run.until(lambda: time.monotonic() > deadline)

    def anew():
        return [a for a in of(actor, Assign) if a.assignment[0] == 2]

    assert anew() == []  # what it holds stays where it is
    assert hub.registered.incarnation == actor.registered.incarnation == 0
    held.clear()  # the actor has lost it after all: assigned anew under the new boot
    run.until(anew)


def test_chunks_of_an_episode_are_linked_over_a_killed_broker(run):
    """One chunk before the kill, one after: a draw that looks ahead names the second after the first."""
    run.start()
    actor, slabs = run.link("store"), SlabFolder(run.paths.runtime)
    ask(actor, open_table(REPLAY))
    for value in (1.0, 2.0):
        ticket = ask(actor, ticket_request())
        ask(actor, write_chunk(slabs, ticket, layout(), value, (1, 0)))
        ask(actor, Consumed("main", 0, [1, 8], 8))
        if value == 1.0:
            run.kill()
            run.start()
    draw = ask(actor, Sample("main", 1, 64, 3, 8))
    assert len(draw.chunk_offset) == 2 and draw.chunk_following.tolist() == [1, -1]


def test_a_frozen_actor_is_lost_and_its_slice_moves(run):
    run.start()
    run.member("hub", slices=[{"slice": "s0", "rows": 1, "endpoint": "e"}])
    frozen = run.member("actor", "actor-0")
    run.until(lambda: of(frozen, Assign))
    frozen.stage("act", 0.1)
    deadline = time.monotonic() + 0.3
    run.until(lambda: time.monotonic() > deadline)
    run.members.remove(frozen)
    spare = run.member("actor", "actor-1")
    run.until(lambda: [a for a in of(spare, Assign) if a.slice == "s0"])
    states = {m["name"]: m["state"] for m in ask(run.link("registry"), ListMembers()).members}
    assert states["actor-0"] == "lost" and states["actor-1"] == "ready"
    run.members.append(frozen)
    run.until(lambda: frozen.registered is None)  # told to rejoin
    run.until(lambda: frozen.registered is not None)


def test_a_stalled_reader_costs_counted_messages_and_no_time(run):
    """T17: a consumer stalls; drops are counted; the end with unsent data comes in time."""
    run.start()
    learner, stalled = run.member("learner"), run.member("actor")
    run.until(lambda: learner.registered and stalled.registered)
    run.members.remove(stalled)
    # Large: the kernel's and both sides' buffers must be full before 6000 of them.
    total = 12_000
    for number in range(1, total + 1):
        learner.link.socket.poll(1000, zmq.POLLOUT)
        learner.send(Notice("policy", [1, number], 0, number, 7, 100, "w" * 1000))
    assert isinstance(ask(learner.link, Ping()), Pong)
    time.sleep(0.6)
    unsent = float(re.search(r'unsent_messages_total{role="actor"} (\S+)', run.get("/metrics")[1])[1])
    assert 0 < unsent < total
    started = time.monotonic()
    run.process.send_signal(signal.SIGTERM)
    assert run.process.wait(timeout=5) == 0
    assert time.monotonic() - started < 5
    assert not (run.paths.root / "http.txt").exists()


def test_who_missed_a_message_gets_the_newest_with_its_next_heartbeat(run):
    """T17: drops are counted exactly and seen as a gap in the versions."""
    run.start()
    learner, stalled = run.member("learner"), run.member("actor")
    run.until(lambda: learner.registered and stalled.registered)
    run.members.remove(stalled)
    total = 12_000
    for number in range(1, total + 1):
        learner.link.socket.poll(1000, zmq.POLLOUT)
        learner.send(Notice("policy", [1, number], 0, number, 7, 100, "w" * 1000))
    assert isinstance(ask(learner.link, Ping()), Pong)
    time.sleep(0.6)
    unsent = float(re.search(r'unsent_messages_total{role="actor"} (\S+)', run.get("/metrics")[1])[1])
    run.members.append(stalled)
    run.until(lambda: of(stalled, Notice) and of(stalled, Notice)[-1].version == [1, total])
    numbers = [m.version[1] for m in of(stalled, Notice)]
    assert len(numbers) - 1 + unsent == total  # each is counted once; the last one came twice at most
    gap = [b - a for a, b in zip(numbers, numbers[1:]) if b - a > 1]
    assert sum(gap) - len(gap) + 1 == unsent


def test_a_stop_command_reaches_all_and_ends_the_broker_last(run):
    run.start()
    members = [run.member(role) for role in ("hub", "actor", "learner", "launcher")]
    run.until(lambda: all(m.registered for m in members))
    assert ask(run.link("registry"), Command("stop")) == Done(
        {"told": ["actor-0", "hub-0", "launcher-0", "learner-0"]}
    )
    run.until(lambda: all(m.stop_requested for m in members))
    assert run.process.poll() is None
    for member in members[:3]:
        member.leave("stopped")
    assert run.process.wait(timeout=2) == 0


def test_scale_needs_a_launcher(run):
    run.start()
    control = run.link("registry")
    with pytest.raises(Exception, match="no launcher is a member"):
        ask(control, Command("scale", {"actor": 2}))
    launcher = run.member("launcher")
    run.until(lambda: launcher.registered)
    assert ask(control, Command("scale", {"actor": 2})) == Done({"told": ["launcher-0"]})
    run.until(lambda: of(launcher, Command))
    assert of(launcher, Command)[0].arguments == {"actor": 2}


def test_http_says_who_is_missing_and_what_was_dropped(run):
    run.start()
    assert run.get("/healthz")[0] == 200
    status, text = run.get("/readyz")
    assert status == 503 and json.loads(text)["missing"][0] == "hub (none has registered)"
    stats = {"steps_per_s": 12.5, "held": {"s0": "ipc://hub"}}
    members = [run.member(role, stats=lambda: stats) for role in ("hub", "actor", "learner")]
    run.until(lambda: all(m.registered for m in members))
    actor = run.link("store")
    ask(actor, open_table(QUEUE))
    ticket = ask(actor, ticket_request())
    commit = write_chunk(SlabFolder(run.paths.runtime), ticket, layout(), 1.0, (1, 0))
    commit.digest ^= 1
    assert ask(actor, commit).reason == "corrupt"
    foreign = ZmqLink.connect(run.paths.store_endpoint, "another-run")
    foreign.send(Ping())
    run.links.append(foreign)
    run.until(lambda: run.get("/readyz")[0] == 200)
    text = run.get("/metrics")[1]
    assert 'rollbus_actor_steps_per_s{member="actor-0"} 12.5' in text
    assert 'rollbus_dropped_chunks_total{reason="corrupt",table="main"} 1.0' in text
    assert 'rollbus_rejected_frames_total{code="foreign-run",member="broker-0",plane="store"} 1.0' in text
    assert 'rollbus_member_up{member="hub-0",role="hub"} 1.0' in text


def test_http_addresses_are_checked(run, tmp_path):
    def start(address):
        broker = Broker(RunPaths(tmp_path / "other"), BrokerConfig(http=address))
        try:
            broker.start(Poller())
        finally:
            broker.stop()

    with pytest.raises(BindRefused, match="reachable from other machines"):
        start("0.0.0.0:0")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BindRefused, match=f"127.0.0.1:{port} cannot be bound"):
            start(f"127.0.0.1:{port}")
    start("")


def test_a_second_broker_of_a_run_is_refused(run):
    run.start()
    second = Broker(run.paths, BrokerConfig())
    with pytest.raises(BindRefused, match="another broker"):
        second.start(Poller())
    second.stop()
    assert isinstance(ask(run.link("registry"), Ping()), Pong)
    assert json.loads((run.paths.store / "boot.json").read_text())["boot"] == 1


def test_resume_in_either_order_moves_on(run):
    """T11: version 500, lag 2, batch 64, actors first: 192 steps at most, and training goes on."""
    run.start()
    actor, learner = run.link("store", "actor"), run.link("store", "learner")
    slabs = SlabFolder(run.paths.runtime)
    requests = [actor.send(ticket_request(f"s{i}", decisions=4)) for i in range(10)]
    state = ask(learner, open_table(QUEUE | {"max_lag": 2}, version=(2, 500), applied=500))
    assert isinstance(state, TableState) and state.sequence == 1 << 32
    time.sleep(0.3)
    tickets = [e.message for e in drain(actor) if e.re in requests]
    assert sum(t.num_decisions * 8 for t in tickets) == 192
    assert all(t.min_version == [2, 500] for t in tickets)
    for ticket in tickets:
        commit = write_chunk(slabs, ticket, layout(4), 1.0, (2, 500))
        assert ask(actor, commit).sequence > 0
    for update in range(3):
        batch = ask(learner, Sample("main"))
        assert batch.sequence == (1 << 32) + 1 + update
        assert sum(c["lengths"].sum() for c in batch.chunks) == 64
        ask(learner, Consumed("main", batch.sequence, [2, 501 + update], 501 + update))
