"""Two hosts and strangers: real services in two network namespaces, with keys between them. T14."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from namespaces import Cable, why_not
from system_kit import PATIENCE_S, steps, wait_for_steps
from system_runner import RECIPES, TINY, Runner, wait_for

from rollbus_core.key_folder import KeyFolder
from rollbus_wire.keys import load

pytestmark = pytest.mark.timeout(500)
REASON = why_not()
needs_root = pytest.mark.skipif(bool(REASON), reason=REASON)
#: Tries to open every port below the last one of those that Linux gives away by itself.
SCAN = """
import socket, sys
found = []
for port in range(1, 61000):
    with socket.socket() as s:
        s.settimeout(0.5)
        if s.connect_ex((sys.argv[1], port)) == 0:
            found.append(port)
print(found)
"""
#: Says something on a socket as whoever it has the key of, and prints what comes back.
SPEAK = """
import sys, time
from rollbus_wire import messages as m
from rollbus_wire.errors import AccessDenied
from rollbus_wire.keys import load
from rollbus_wire.zmq_link import ZmqLink
address, run, what, key = sys.argv[1:5]
said = {
    "notice": m.Notice("policy", [99, 99], 0, 1, 1, 1),
    "sample": m.Sample("main"),
    "list": m.ListMembers(),
}[what]
if key:
    link = ZmqLink.connect(address, run, key=load(key))
else:  # a program that does not know our rules
    import zmq
    from rollbus_wire import sockets
    sockets.is_loopback = lambda host: True
    link = ZmqLink.connect(address, run)
try:
    link.send(said)
    until = time.monotonic() + float(sys.argv[5])
    while time.monotonic() < until:
        envelope = link.recv()
        if envelope is not None:
            print("answer", envelope.message.kind, getattr(envelope.message, "text", ""))
            break
        time.sleep(0.01)
    else:
        print("silence")
except AccessDenied as error:
    print("refused", error)
"""


class TwoHosts:
    """Broker and learner on the right, hub and actor on the left, each with folders of its own."""

    def __init__(self, rollbus: Runner, cable: Cable) -> None:
        self.rollbus, self.cable = rollbus, cable
        self.server, self.far = cable.addresses[cable.right], cable.addresses[cable.left]
        folder = rollbus.folder
        #: Where keys are made and the broker reads them, and what was copied to the other host.
        self.keys, self.copied = folder / "keys", folder / "copied"
        for name, role in (
            ("broker", "broker"), ("hub", "hub"), ("learner", "learner"), ("actor", "actor"),
            ("admin", "admin"), ("arm-1", "peer"), ("late", "actor"),
        ):  # fmt: skip
            KeyFolder(self.keys).create(name, role)
        self.copied.mkdir(mode=0o700)
        for name in ("hub.key_secret", "actor.key_secret", "actor.key"):
            shutil.copy(self.keys / name, self.copied)
        self.runs = {cable.right: folder / "right", cable.left: folder / "left"}
        self.runtimes = {cable.right: rollbus.runtime / "r", cable.left: rollbus.runtime / "l"}
        self.processes: list[subprocess.Popen[str]] = []

    def environment(self, place: str) -> dict[str, str]:
        right = place == self.cable.right
        self.runtimes[place].mkdir(mode=0o700, exist_ok=True)
        return self.rollbus.environment | {
            "ROLLBUS_RUN_DIR": str(self.runs[place]),
            "ROLLBUS_RUNTIME_DIR": str(self.runtimes[place]),
            "ROLLBUS_CONFIG": str(RECIPES / "cartpole_ppo.yaml"), "ROLLBUS_RUN_ID": "two-hosts",
            "ROLLBUS_KEYS": str(self.keys if right else self.copied),
            "ROLLBUS_REGISTRY": f"tcp://{self.server}:5601", "ROLLBUS_STORE": f"tcp://{self.server}:5602",
            "ROLLBUS_WEIGHTS": "tcp://0.0.0.0:5603" if right else "",
            "ROLLBUS_HOST": self.cable.addresses[place],
            "ROLLBUS_HUB_DATA": "tcp://0.0.0.0:5604",
            "ROLLBUS_SET": "run.total_steps=100000000 stop_when.eval_return=null "
            f"broker.http={self.server}:5605 broker.http_token={self.keys / 'http.token'}",
        }  # fmt: skip

    def start(self, place: str, services: str) -> subprocess.Popen[str]:
        words = [sys.executable, "-m", "rollbus_launch", "serve", services]
        process = subprocess.Popen(
            self.cable.command(place, words), env=self.environment(place), cwd=self.rollbus.folder,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        self.processes.append(process)
        self.rollbus.started.append(process)
        return process

    def speak(self, what: str, port: int, key: Path | str, seconds: float = 2.0) -> str:
        """What somebody on the left hears who says ``what`` to the server."""
        address = f"tcp://{self.server}:{port}"
        words = [sys.executable, "-c", SPEAK, address, "two-hosts", what, str(key), str(seconds)]
        done = subprocess.run(
            self.cable.command(self.cable.left, words), env=self.rollbus.environment, capture_output=True,
            text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def http(self, path: str, token: str = "") -> tuple[int, str]:
        """Status and body of a request from the other host."""
        code = (
            "import sys, urllib.request, urllib.error\n"
            "headers = dict(a.split('=', 1) for a in sys.argv[2:])\n"
            "request = urllib.request.Request(sys.argv[1], headers=headers)\n"
            "try:\n    answer = urllib.request.urlopen(request, timeout=5)\n"
            "except urllib.error.HTTPError as error:\n    answer = error\n"
            "print(answer.status); print(answer.read().decode())"
        )
        words = [sys.executable, "-c", code, f"http://{self.server}:5605{path}"]
        words += [f"Authorization=Bearer {token}"] if token else []
        status, _, body = self.cable.inside(self.cable.left, *words).partition("\n")
        return int(status), body

    def metrics(self) -> str:
        return self.http("/metrics", (self.keys / "http.token").read_text().strip())[1]

    def refused(self, plane: str, reason: str, role: str = "") -> float:
        """What /metrics says of the broker's refusals."""
        label = f'rollbus_refused_total{{member="broker-0",plane="{plane}",reason="{reason}",role="{role}"}}'
        return sum(float(line.split()[-1]) for line in self.metrics().splitlines() if line.startswith(label))

    def members(self) -> dict[str, str]:
        """Name -> state."""
        return {row["name"]: row["state"] for row in self._rows()}

    def failures(self) -> dict[str, str]:
        """Name -> what is known of why it failed or was lost."""
        return {row["name"]: row["failure"] for row in self._rows()}

    def _rows(self) -> list[dict[str, Any]]:
        """All members, as an admin's key on the right may ask."""
        words = [sys.executable, "-m", "rollbus_launch", "ps", str(self.runs[self.cable.right]), "--json"]
        done = subprocess.run(
            self.cable.command(self.cable.right, words), env=self.environment(self.cable.right),
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        return json.loads(done.stdout) if done.returncode == 0 else []

    def output(self, process: subprocess.Popen[str]) -> str:
        """All that ``process`` has said, once it has ended."""
        return process.communicate(timeout=PATIENCE_S)[0]

    def close(self) -> None:
        for process in self.processes:
            end_quietly(process)


def end_quietly(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.terminate()
    try:
        process.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()


@pytest.fixture
def cable() -> Iterator[Cable]:
    made = Cable()
    yield made
    made.close()


@pytest.fixture
def hosts(rollbus: Runner, cable: Cable) -> Iterator[TwoHosts]:
    made = TwoHosts(rollbus, cable)
    yield made
    made.close()
    for runtime in made.runtimes.values():
        shutil.rmtree(runtime, ignore_errors=True)


@pytest.mark.long
@needs_root
def test_two_hosts_train_and_strangers_are_refused(hosts: TwoHosts) -> None:
    """Training over CURVE with weights by the stream, then everybody who must not get in, then revocation."""
    cable, run = hosts.cable, hosts.runs[hosts.cable.right]
    KeyFolder(hosts.keys).token()
    server = hosts.start(cable.right, "broker+learner")
    far = hosts.start(cable.left, "hub+actor")

    def updates() -> int:
        for process in (server, far):
            assert process.poll() is None, hosts.output(process)
        return len(hosts.rollbus.lines(run / "metrics.jsonl"))

    wait_for(lambda: updates() >= 3, PATIENCE_S, "three updates over the cable")
    rows = hosts.rollbus.lines(run / "metrics.jsonl")
    assert steps(hosts.rollbus, run) >= 3 * 512 and rows[-1]["version"] != rows[0]["version"]
    assert not list(hosts.runtimes[cable.left].glob("*/slab-*")), "no chunk is in the far host's memory"
    assert list(hosts.runtimes[cable.left].glob("*/weights-policy.relay")), "one relay holds the far slot"
    assert set(hosts.members()) == {"broker-0", "hub-0", "actor-0", "learner-0"}

    _strangers(hosts)
    _http(hosts)
    _revocation(hosts, far, run)


def _strangers(hosts: TwoHosts) -> None:
    decoded = [
        line for line in hosts.metrics().splitlines() if line.startswith("rollbus_rejected_frames_total")
    ]
    assert hosts.speak("notice", 5601, "") == "silence", "without a key"
    robot, actor = hosts.keys / "arm-1.key_secret", hosts.keys / "late.key_secret"
    for port, what, plane in ((5601, "notice", "registry"), (5602, "sample", "store")):
        before = hosts.refused(plane, "role", "peer")
        said = _as_if_for_broker(hosts, robot, what, port)
        assert said.startswith("refused") and "arm-1" in said
        assert hosts.refused(plane, "role", "peer") > before or _soon(hosts, plane, before)
    wait_for(lambda: hosts.refused("registry", "handshake") >= 1, 10, "the anonymous one is counted")
    after = [
        line for line in hosts.metrics().splitlines() if line.startswith("rollbus_rejected_frames_total")
    ]
    assert after == decoded, "nothing of theirs was decoded"
    assert hosts.speak("sample", 5602, actor).startswith(
        "answer fault a key of role actor may not send sample"
    )
    assert hosts.speak("notice", 5601, actor).startswith(
        "answer fault a key of role actor may not send notice"
    )
    wait_for(lambda: hosts.refused("store", "message", "actor") == 1, 10, "the actor's attempt is counted")


def _soon(hosts: TwoHosts, plane: str, before: float) -> bool:
    """/metrics is half a second old at most."""
    time.sleep(1.5)
    return hosts.refused(plane, "role", "peer") > before


def _as_if_for_broker(hosts: TwoHosts, robot: Path, what: str, port: int) -> str:
    """The robot's key with the broker's public half put into the file: what a thief would do."""
    key = load(robot)
    forged = hosts.rollbus.folder / "forged.key_secret"
    forged.touch(0o600)
    broker = load(hosts.keys / "broker.key_secret")
    forged.write_text(key._replace(server_key=broker.public).to_text())
    return hosts.speak(what, port, forged)


def _http(hosts: TwoHosts) -> None:
    token = (hosts.keys / "http.token").read_text().strip()
    assert hosts.http("/healthz", token)[0] == 200
    for path in ("/metrics", "/healthz", "/anything"):
        status, body = hosts.http(path)
        assert status == 401 and "rollbus_" not in body
    assert hosts.http("/metrics", token[:-1] + "x")[0] == 401
    wait_for(lambda: hosts.refused("http", "token") >= 4, 10, "refused requests are counted")


def _revocation(hosts: TwoHosts, far: subprocess.Popen[str], run: Path) -> None:
    """The live actor's key is revoked: its session ends, and no update follows."""
    KeyFolder(hosts.keys).revoke("actor")
    wait_for(lambda: hosts.refused("registry", "revoked", "actor") >= 1, 10, "the live session is refused")
    wait_for(lambda: hosts.members().get("actor-0") == "lost", 20, "the registry has lost the actor")
    assert "its key actor is revoked" in hosts.failures()["actor-0"], hosts.failures()
    time.sleep(1.0)  # what was committed before is learned from
    before = len(hosts.rollbus.lines(run / "metrics.jsonl"))
    time.sleep(2.0)
    assert len(hosts.rollbus.lines(run / "metrics.jsonl")) == before, "nothing of a revoked actor is learned"
    end_quietly(far)
    again = hosts.start(hosts.cable.left, "hub+actor")
    said = hosts.output(again)
    assert again.returncode == 2 and "key actor (role actor) is refused" in said, said


@needs_root
def test_a_scan_from_another_host_finds_nothing_open(rollbus: Runner, cable: Cable) -> None:
    """All services of a default run, scanned port by port from the other end of the cable."""
    run = rollbus.folder / "run"
    words = rollbus.command("train", TINY, "run.total_steps=100000000", "--run-dir", str(run))
    process = subprocess.Popen(
        cable.command(cable.right, words), env=rollbus.environment, cwd=rollbus.folder,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    rollbus.started.append(process)
    wait_for_steps(rollbus, run, 500, process)
    address = cable.addresses[cable.right]
    listener = subprocess.Popen(
        cable.command(cable.right, [sys.executable, "-c", "import socket, time\n"
        f"s = socket.create_server(('{address}', 4711)); print('up', flush=True); time.sleep(300)"]),
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert listener.stdout is not None and listener.stdout.readline() == "up\n"
    assert cable.inside(cable.left, sys.executable, "-c", SCAN, address).strip() == "[4711]", "only the decoy"
    listener.kill()
    listener.wait(10)
    process.terminate()
    process.communicate(timeout=PATIENCE_S)
