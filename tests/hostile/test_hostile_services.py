"""Real services on real sockets: strangers send what they like, everybody else goes on."""

import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import harness
import numpy as np
import pytest
import zmq
from nasty import MIB, NASTY, envelope

from rollbus_core.paths import RunPaths
from rollbus_wire.limits import IGNORED_S, MESSAGES_PER_TURN, REJECTS_AT_ONCE
from rollbus_wire.messages import Ping, Pong
from rollbus_wire.peer import Peer
from rollbus_wire.polling import Poller, wait_reply
from rollbus_wire.zmq_link import ZmqLink

#: Broker, hub with a dial-in peer, and an actor on the hub's socket; one process, real sockets between them.
SERVE = """
import sys, time
from pathlib import Path
import numpy as np
from soak_processes import Zeros
from rollbus_actor.actor import Actor
from rollbus_broker.broker import Broker
from rollbus_core import service
from rollbus_core.config.models import ActorConfig, BrokerConfig, EnvConfig
from rollbus_core.paths import RunPaths
from rollbus_simulator.episodes import TrainingEpisodes
from rollbus_simulator.hub import Hub
from rollbus_wire.zmq_link import ZmqLink
paths = RunPaths(sys.argv[1])
paths.create()
def link(): return ZmqLink.connect(paths.registry, paths.run_id, str(time.monotonic()))
with paths.alive():
    broker = Broker(paths, BrokerConfig(heartbeat_s=0.1, http="127.0.0.1:0"))
    hub = Hub("hub-0", 0, EnvConfig(placement="dial_in"), num_rows=2, num_slices=1, registry=link(),
              episodes=TrainingEpisodes(1), data_links=[ZmqLink.bind(paths.hub_data(0), paths.run_id)],
              peer_link=ZmqLink.bind(paths.hub_peers(0), paths.run_id), run_id=paths.run_id)
    actor = Actor("actor-0", ActorConfig(), engine=Zeros(), policy_spec=Zeros.spec(), registry=link(),
                  connect=lambda endpoint: ZmqLink.connect(endpoint, paths.run_id))
    told = []
    def tell():  # a hub is ready once a peer has come
        if not told:
            told.append(1)
            print("ready", flush=True)
    service.run([broker, hub, actor], on_turn=tell)
"""
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
PLANES = ("registry", "store", "data", "peers")


class Services:
    """The process and a peer that steps."""

    def __init__(self, paths: RunPaths) -> None:
        self.paths = paths
        path = os.pathsep.join([str(BENCHMARKS), os.environ.get("PYTHONPATH", "")])
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(paths.root)], stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
        while (line := self.process.stdout.readline()) != "ready\n":
            assert line, "the services did not start"
        self.endpoints = {
            "registry": paths.registry, "store": paths.store_endpoint, "data": paths.hub_data(0),
            "peers": paths.hub_peers(0),
        }  # fmt: skip
        from rollbus_envs import toy

        self.env = toy.make(toy.Config(), 2)
        self.steps, step = 0, self.env.step

        def counted(*arguments):
            self.steps += 1
            return step(*arguments)

        self.env.step = counted
        self.link = ZmqLink.connect(self.endpoints["peers"], paths.run_id)
        self.peer, self.poller = Peer(self.env, self.link, "good"), Poller()
        self.poller.add(self.link)
        self.peer.dial()
        self.context = zmq.Context()

    def step(self, num: int, limit_s: float = 30.0) -> float:
        """Let the good peer take ``num`` steps; seconds that it took."""
        began, target = time.monotonic(), self.steps + num
        while self.steps < target:
            assert self.process.poll() is None, "the services died"
            assert time.monotonic() - began < limit_s, "nobody steps any more"
            if not self.peer.poll():
                self.poller.wait(0.05)
        return time.monotonic() - began

    def stranger(self, plane: str) -> zmq.Socket:
        socket = self.context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(self.endpoints[plane])
        return socket

    def answers(self, plane: str) -> bool:
        """Whether a newcomer is answered there; the hub's peer plane knows only those who said hello."""
        link = ZmqLink.connect(self.endpoints[plane], self.paths.run_id)
        try:
            reply = wait_reply(link, link.send(Ping()), 10.0) if plane != "peers" else Pong()
            return isinstance(reply, Pong)
        finally:
            link.close()

    def memory(self) -> int:
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * 4096

    def cpu_s(self) -> float:
        words = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def rejected(self) -> float:
        """What Prometheus sees, all planes and reasons together."""
        url = (self.paths.root / "http.txt").read_text().strip() + "/metrics"
        text = urllib.request.urlopen(url, timeout=5).read().decode()
        lines = [line for line in text.splitlines() if line.startswith("rollbus_rejected_frames_total{")]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def close(self) -> None:
        self.link.close()
        self.context.destroy(0)
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def services(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    before = os.environ.get("ROLLBUS_RUNTIME_DIR")
    os.environ["ROLLBUS_RUNTIME_DIR"] = str(folder)
    services = Services(RunPaths(folder / "run"))
    services.step(5)
    yield services
    services.close()
    if before is None:
        del os.environ["ROLLBUS_RUNTIME_DIR"]
    else:
        os.environ["ROLLBUS_RUNTIME_DIR"] = before


@pytest.mark.parametrize("plane", PLANES)
def test_everything_nasty_is_refused_counted_and_survived(services, plane):
    before = services.rejected()
    for frames in NASTY.values():
        stranger = services.stranger(plane)
        stranger.send_multipart(frames)
        stranger.close(100)
        services.step(1)
    assert services.answers(plane)
    deadline = time.monotonic() + 10
    while services.rejected() < before + 0.8 * len(NASTY):
        assert time.monotonic() < deadline, f"{services.rejected() - before} of {len(NASTY)} are counted"
        services.step(1)


@pytest.mark.parametrize("plane", PLANES)
def test_what_fuzzing_found_is_survived_on_sockets(services, plane):
    for name in harness.targets():
        stranger = services.stranger(plane)
        for data in harness.corpus(name)[:40]:
            stranger.send_multipart([data])
        stranger.close(100)
        services.step(1)
    assert services.answers(plane)


def test_refusals_cost_no_memory_and_little_time(services):
    """Many of the worst ones by ever new strangers, whom no budget stops."""
    worst = [
        NASTY[name] for name in ("millions of empty maps", "huge kind", "depth of the reader", "truncated")
    ]

    def send(rounds: int) -> None:
        for _ in range(rounds):
            for frames in worst:
                stranger = services.stranger("registry")
                stranger.send_multipart(frames)
                stranger.close(200)
            services.step(1)

    send(15)
    began, cpu_s, memory = services.rejected(), services.cpu_s(), services.memory()
    send(40)
    time.sleep(0.6)
    services.step(1)
    count = services.rejected() - began
    assert count >= 0.8 * 40 * len(worst)
    assert (services.cpu_s() - cpu_s) / count < 0.05
    assert (services.memory() - memory) / count < MIB / 2


def test_a_peer_that_sends_garbage_is_ignored_and_the_others_are_not(services):
    stranger = services.stranger("data")
    began = services.rejected()
    for _ in range(3 * REJECTS_AT_ONCE):
        stranger.send(b"garbage")
    services.step(3)
    stranger.send_multipart(envelope("ping"))
    assert services.answers("data")
    faults = 0
    while stranger.poll(1000):
        answer = stranger.recv_multipart()
        faults += b"pong" not in answer[0]
        assert b"pong" not in answer[0], "who is ignored gets no answer"
    assert faults <= REJECTS_AT_ONCE
    deadline = time.monotonic() + 5
    while services.rejected() < began + 3 * REJECTS_AT_ONCE:
        assert time.monotonic() < deadline
        services.step(1)
    assert IGNORED_S > 1.0
    stranger.close()


@pytest.mark.parametrize("plane", PLANES)
def test_a_flood_of_small_messages_starves_nobody(services, plane):
    """One peer sends sound messages as fast as it can; the good peer has its turn after a bounded number.

    Counted in messages, so that a busy machine changes nothing: a step takes a few turns of the services,
    and a turn takes 2 ms of the flood, which are some 80 messages here, and never more than its limit.
    """
    num = 60
    command = [sys.executable, "-c", FLOOD, services.endpoints[plane], envelope("ping")[0].hex()]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as flood:
        try:
            assert flood.stdout.read(1) == b"x"  # it is answered
            services.step(num, limit_s=60.0)
        finally:
            flood.kill()
        answered = 100 * len(flood.stdout.read())
    assert answered > 0
    assert answered / num < 6 * MESSAGES_PER_TURN
    assert services.answers(plane)


FLOOD = """
import sys, zmq
socket = zmq.Context().socket(zmq.DEALER)
socket.connect(sys.argv[1])
frame, answered = bytes.fromhex(sys.argv[2]), 0
while True:
    socket.send(frame)
    while socket.poll(0):
        socket.recv_multipart()
        answered += 1
        if answered % 100 == 0:
            sys.stdout.write("x")
            sys.stdout.flush()
"""


def test_arrays_of_rows_that_are_none_cost_little(services):
    """Valid messages with huge arrays of nonsense: refused by what the service knows, not by size."""
    stranger = services.stranger("data")
    rows = np.zeros(4_000_000, np.int32)
    before = services.memory()
    for _ in range(10):
        stranger.send_multipart(
            envelope("act", slice="hub-0/0", fence=1, tick=1, rows=rows, action=np.zeros(1, np.int64))
        )
    services.step(3)
    assert services.answers("data")
    assert services.memory() - before < 64 * MIB
    stranger.close()
