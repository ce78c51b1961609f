"""Keys and the gate: real sockets over tcp, real handshakes, real refusals."""

from __future__ import annotations

import logging
import socket as sockets_of_python
import time
from pathlib import Path
from typing import Any, Callable, Iterator, List

import numpy as np
import pytest
from key_kit import make_key, revoke
from wire_examples import Walk

from rollbus_wire import keys, roles
from rollbus_wire.client import Client
from rollbus_wire.codec import pack
from rollbus_wire.errors import AccessDenied, DeadlineExceeded, FaultReceived, PeerLost
from rollbus_wire.gate import Gate, Refusal
from rollbus_wire.messages import (
    PLANES,
    PROTOCOL,
    Act,
    Attach,
    Detach,
    FetchUnannotated,
    Hello,
    Message,
    Notice,
    Ping,
    Pong,
    Register,
    Sample,
    TicketRequest,
)
from rollbus_wire.peer import run_env
from rollbus_wire.policy_client import PolicyClient
from rollbus_wire.polling import drain, wait_reply
from rollbus_wire.sockets import split_key
from rollbus_wire.zmq_link import ZmqLink

NOTICE = Notice("policy", [1, 0], 0, 1, 1, 1)


class Rig:
    """A folder of keys, a gate, and links that are closed at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder / "keys", []  # type: Path, List[str]
        self.servers = {}
        for name in ("broker", "hub", "learner"):
            self.servers[name] = keys.load(make_key(self.folder, name, name))
        self.gate = Gate(self.folder, self.log.append)
        self.links: List[ZmqLink] = []

    def bind(self, plane: str) -> ZmqLink:
        server = self.servers[roles.BOUND_BY[plane]]
        link = self.gate.bind("tcp://127.0.0.1:0", plane, server)
        self.links.append(link)
        return link

    def dial(self, bound: ZmqLink, name: str, role: str, sender: str = "") -> ZmqLink:
        path = self.folder / (name + keys.SECRET)
        key = keys.load(path if path.exists() else make_key(self.folder, name, role))
        self.gate.allowed.reread()
        link = ZmqLink.connect(bound.endpoint, key=key, sender=sender)
        self.links.append(link)
        return link

    def count(self, plane: str, reason: str, role: str = "") -> int:
        return self.gate.counts.get(Refusal(plane, reason, role), 0)

    def close(self) -> None:
        for link in self.links:
            link.close()
        self.gate.close()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.close()


def until(condition: Callable[[], Any], what: str = "", timeout_s: float = 10.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError("not in time: %s" % what)


def arrived(link: ZmqLink, wait_s: float = 0.6) -> List[Message]:
    """What reaches ``link`` within ``wait_s``."""
    found: List[Message] = []
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        found += [envelope.message for envelope in drain(link)]
        time.sleep(0.01)
    return found


def exchange(bound: ZmqLink, dialled: ZmqLink) -> None:
    """A ping reaches ``bound`` and its answer comes back."""
    request = dialled.send(Ping())
    envelope = until(bound.recv, "the ping")
    assert isinstance(envelope.message, Ping)
    bound.send(Pong(), to=envelope.peer, re=envelope.id)
    assert isinstance(wait_reply(dialled, request, 10.0), Pong)


def say(link: ZmqLink, message: Message) -> None:
    """Send what may be refused already."""
    try:
        link.send(message)
    except AccessDenied:
        pass


def refused(link: ZmqLink) -> str:
    """The error with which a link learns that its key is not taken."""
    with pytest.raises(AccessDenied) as caught:
        arrived(link, 10.0)
    return str(caught.value)


# --- who may connect -----------------------------------------------------------------------------


def test_a_listed_key_of_the_right_role_is_let_in(rig: Rig) -> None:
    for plane, name in (("peer", "arm"), ("data", "act"), ("registry", "hub"), ("store", "learner")):
        role = {"arm": "peer", "act": "actor"}.get(name, name)
        bound = rig.bind(plane)
        exchange(bound, rig.dial(bound, name, role))
        assert bound.endpoint.startswith("tcp://127.0.0.1:") and "#" in bound.endpoint
    assert not rig.gate.counts


def test_without_a_key_nobody_gets_to_speak(rig: Rig) -> None:
    bound = rig.bind("registry")
    address, _ = split_key(bound.endpoint)
    anonymous = ZmqLink.connect(address)
    rig.links.append(anonymous)
    anonymous.send(Ping())
    raw = sockets_of_python.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), 5)
    raw.sendall(b"GET / HTTP/1.1\r\n\r\n" + b"\x00" * 200)
    until(lambda: rig.count("registry", "handshake"), "the refusal is counted")
    assert not arrived(bound) and not bound.rejected, "nothing was decoded"
    raw.close()
    assert any("registry socket: handshake" in line for line in rig.log)


def test_an_unknown_key_is_refused_and_told_so(rig: Rig, tmp_path: Path) -> None:
    bound = rig.bind("peer")
    stranger = keys.load(make_key(tmp_path / "elsewhere", "arm-1", "peer"))
    link = ZmqLink.connect(bound.endpoint, key=stranger)
    rig.links.append(link)
    say(link, Hello([1, 0], {}, 1))
    assert "key arm-1 (role peer) is refused" in refused(link)
    assert not arrived(bound, 0.2) and not bound.rejected
    assert rig.count("peer", "unknown-key") >= 1


@pytest.mark.parametrize("plane", ["registry", "store", "data", "weights", "policy"])
def test_a_robots_key_opens_the_robots_socket_only(rig: Rig, plane: str) -> None:
    rig.servers["actor"] = keys.load(make_key(rig.folder, "actor", "actor"))
    bound = rig.bind(plane)
    link = rig.dial(bound, "arm-1", "peer")
    say(link, NOTICE)
    assert "arm-1" in refused(link)
    assert not arrived(bound, 0.2) and not bound.rejected, "nothing was decoded"
    assert rig.count(plane, "role", "peer") >= 1


def test_another_server_is_not_mistaken_for_the_one_named(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    bound = rig.bind("peer")
    address, _ = split_key(bound.endpoint)
    path = make_key(rig.folder, "arm-1", "peer", rig.servers["broker"])
    rig.gate.allowed.reread()
    link = ZmqLink.connect(address, key=keys.load(path))
    rig.links.append(link)
    link.send(Hello([1, 0], {}, 1))
    with caplog.at_level(logging.WARNING):
        until(lambda: arrived(link, 0.05) or "hangs up on key arm-1" in caplog.text, "the warning")
    assert not arrived(bound, 0.1)
    until(lambda: rig.count("peer", "handshake"), "the refusal is counted")


def test_a_server_without_keys_is_told_apart(rig: Rig) -> None:
    open_ = ZmqLink.bind("tcp://127.0.0.1:0")
    rig.links.append(open_)
    path = make_key(rig.folder, "arm-1", "peer", rig.servers["hub"])
    link = ZmqLink.connect(open_.endpoint, key=keys.load(path))
    rig.links.append(link)
    assert "key arm-1 (role peer) cannot be used: the server there has no keys" in refused(link)


def test_a_key_file_must_say_whom_to_expect(rig: Rig) -> None:
    path = make_key(rig.folder, "arm-1", "peer")
    with pytest.raises(AccessDenied, match="which server to expect.*--server"):
        ZmqLink.connect("tcp://127.0.0.1:5", key=keys.load(path))


# --- who may say what ------------------------------------------------------------------------------


def test_every_message_to_a_bound_socket_has_a_row() -> None:
    """What is sent to a plane by those who dial it stands in the table: all but what who binds says."""
    for plane, rows in roles.MAY_SEND.items():
        assert set(rows) <= set(roles.ROLES)
        for kinds in rows.values():
            assert all(kind in PLANES[plane] for kind in kinds)
    said_by_who_binds = {
        "peer": {"welcome", "reset", "step", "observe", "get_state", "set_state"},
        "data": {"attached", "tick", "detached"},
        "registry": {"registered", "assign", "release", "members"},
        "store": {"table_state", "ticket", "committed", "batch", "unannotated", "annotated"},
        "weights": {"weight_manifest", "weight_chunk"},
        "policy": {"decided"},
    }
    for plane, rows in roles.MAY_SEND.items():
        sent = {kind.kind for kinds in rows.values() for kind in kinds}
        assert {kind.kind for kind in PLANES[plane]} - sent == said_by_who_binds[plane]


@pytest.mark.parametrize(
    ("plane", "role", "message"),
    [
        ("store", "actor", Sample("main")),
        ("store", "learner", TicketRequest("main", "s", 1, 1, {})),
        ("store", "annotator", Sample("main")),
        ("store", "actor", FetchUnannotated("main", "judge")),
        ("registry", "annotator", NOTICE),
        ("registry", "actor", NOTICE),
        ("registry", "hub", NOTICE),
        ("registry", "actor", Register("learner", "learner-0", "p", 1, "h", [1, 0])),
        ("registry", "hub", Register("launcher", "launcher-0", "p", 1, "h", [1, 0])),
        ("data", "actor", Hello([1, 0], {}, 1)),
    ],
)
def test_a_role_may_send_its_own_messages_only(rig: Rig, plane: str, role: str, message: Message) -> None:
    bound = rig.bind(plane)
    link = rig.dial(bound, "someone", role)
    exchange(bound, link)
    request = link.send(message)
    found: List[Message] = []
    until(lambda: found.extend(arrived(bound, 0.05)) or rig.count(plane, "message", role), "the refusal")
    assert not found, "it never reaches the service"
    assert bound.rejected == {"forbidden": 1} and request
    with pytest.raises(FaultReceived, match="may not"):
        raise_fault(link)
    exchange(bound, link)


@pytest.mark.parametrize("body", [None, {}, {"table": 7}])
def test_a_forbidden_message_is_forbidden_whatever_is_in_it(rig: Rig, body: Any) -> None:
    bound = rig.bind("store")
    link = rig.dial(bound, "someone", "actor")
    exchange(bound, link)
    link.socket.send_multipart(pack({"v": PROTOCOL[0], "k": "sample", "id": 7, "b": body}))
    until(lambda: bound.recv() or rig.count("store", "message", "actor"), "the refusal")
    assert rig.count("store", "message", "actor") == 1 and bound.rejected == {"forbidden": 1}


@pytest.mark.parametrize("kind", ["no such thing", 7, ["sample"], None])
def test_what_is_no_message_is_not_called_forbidden(rig: Rig, kind: Any) -> None:
    bound = rig.bind("store")
    link = rig.dial(bound, "someone", "actor")
    exchange(bound, link)
    link.socket.send_multipart(pack({"v": PROTOCOL[0], "k": kind, "id": 7, "b": {}}))
    until(lambda: bound.recv() or bound.rejected, "the refusal")
    assert bound.rejected == {"wire": 1} and not rig.gate.counts


def raise_fault(link: ZmqLink) -> None:
    envelope = until(link.recv, "the fault")
    raise FaultReceived(envelope.message.code, envelope.message.text)


def test_allowed_messages_pass(rig: Rig) -> None:
    bound = rig.bind("data")
    link = rig.dial(bound, "act", "actor")
    rows = np.zeros(1, np.int32)
    for message in (Attach("s", [0, 0]), Act("s", 1, 1, rows, rows), Detach("s", 1)):
        link.send(message)
    kinds = [m.kind for m in arrived(bound, 0.5)]
    assert kinds == ["attach", "act", "detach"]


def test_nobody_speaks_in_anothers_name(rig: Rig) -> None:
    bound = rig.bind("registry")
    first = rig.dial(bound, "actor-0", "actor", sender="aaaa")
    second = rig.dial(bound, "actor-1", "actor", sender="aaaa")
    exchange(bound, first)
    second.send(Ping())
    until(lambda: arrived(bound, 0.05) or rig.count("registry", "sender", "actor"), "the refusal")
    exchange(bound, first)
    assert rig.count("registry", "sender", "actor") == 1


# --- revocation --------------------------------------------------------------------------------------


def test_revocation_ends_a_live_session(rig: Rig) -> None:
    bound = rig.bind("data")
    link = rig.dial(bound, "act", "actor", sender="aaaa")
    other = rig.dial(bound, "act-2", "actor", sender="bbbb")
    exchange(bound, link)
    exchange(bound, other)
    assert bound.revoked("aaaa") == bound.revoked("cccc") == ""
    link.send(Ping())
    peer = until(bound.recv, "the ping").peer
    revoke(rig.folder, "act")
    until(lambda: rig.gate.allowed.get(link.key.public.decode()).revoked, "the list is reread", 2.0)
    assert bound.revoked("aaaa") == "act" and bound.revoked("bbbb") == ""
    with pytest.raises(PeerLost, match="key act is revoked"):
        bound.send(Pong(), to=peer)
    for _ in range(5):
        link.send(Ping())
    assert not arrived(bound) and not bound.rejected, "what it still says is not decoded"
    assert rig.count("data", "revoked", "actor") == 5
    exchange(bound, other)
    again = ZmqLink.connect(bound.endpoint, key=link.key)
    rig.links.append(again)
    assert "revoked" in refused(again)
    assert len([line for line in rig.log if "revoked act" in line]) <= 2, "the log is limited in rate"


def test_a_new_key_under_an_old_name_does_not_revive_the_old_one(rig: Rig) -> None:
    bound = rig.bind("data")
    old = rig.dial(bound, "act", "actor")
    exchange(bound, old)
    revoke(rig.folder, "act")
    (rig.folder / "act.key_secret").unlink()
    new = rig.dial(bound, "act", "actor")
    exchange(bound, new)
    old.send(Ping())
    assert not arrived(bound)
    assert rig.count("data", "revoked", "actor") == 1


# --- a robot, and whoever asks it ----------------------------------------------------------------------


def test_a_robot_dials_in_with_one_file(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """`run_env` and `Client` with keys, in two threads; then the robot's key is revoked."""
    import threading

    path = make_key(rig.folder, "arm-1", "peer", rig.servers["hub"])
    ended: List[BaseException] = []

    def robot(address: str) -> None:
        try:
            run_env(Walk(), address, key=path)
        except BaseException as error:  # noqa: BLE001 - what it ended with is looked at below
            ended.append(error)

    with Client("tcp://127.0.0.1:0", key=rig.folder / "hub.key_secret") as client:
        address, _ = split_key(client.endpoint)
        thread = threading.Thread(target=robot, args=(address,), daemon=True)
        thread.start()
        client.wait_peer(10.0)
        client.reset([3])
        client.step(np.zeros((1, 1), np.float32))
        with caplog.at_level(logging.WARNING):
            revoke(rig.folder, "arm-1")
            until(lambda: client._gate.allowed.get(keys.load(path).public.decode()).revoked, "reread", 2.0)
            with pytest.raises((PeerLost, DeadlineExceeded)):
                client.ping(1.0)
    thread.join(1.0)


@pytest.mark.parametrize("role", ["actor", "client"])
def test_a_key_of_another_role_is_no_robots(tmp_path: Path, role: str) -> None:
    key = make_key(tmp_path / "keys", "other", role)
    with pytest.raises(AccessDenied, match=r"key other has role %s.*take a key of role peer" % role):
        run_env(lambda: None, "tcp://127.0.0.1:9", key=key)


def test_a_robots_key_asks_no_policy(tmp_path: Path) -> None:
    key = make_key(tmp_path / "keys", "arm-1", "peer")
    with pytest.raises(AccessDenied, match="key arm-1 has role peer.*take a key of role client"):
        PolicyClient("tcp://127.0.0.1:9", key=key)


def test_a_robot_whose_key_is_refused_ends_with_the_reason(rig: Rig, tmp_path: Path) -> None:
    bound = rig.bind("peer")
    path = make_key(tmp_path / "old", "arm-9", "peer", rig.servers["hub"])
    with pytest.raises(AccessDenied, match=r"key arm-9 \(role peer\) is refused"):
        run_env(Walk(), split_key(bound.endpoint)[0], key=path)
