"""Key files, and the addresses that ask for them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import zmq
import zmq.auth
from key_kit import make_key, revoke

from rollbus_wire import keys
from rollbus_wire.errors import AccessDenied, BindRefused
from rollbus_wire.sockets import announced, check_bind, split_key
from rollbus_wire.zmq_link import ZmqLink

# --- key files ---------------------------------------------------------------------------------


def test_a_key_file_is_a_zeromq_certificate(tmp_path: Path) -> None:
    server = keys.load(make_key(tmp_path, "hub", "hub"))
    path = make_key(tmp_path, "arm-1", "peer", server)
    key = keys.load(path)
    assert (key.name, key.role, key.server, key.server_key) == ("arm-1", "peer", "hub", server.public)
    assert zmq.auth.load_certificate(path) == (key.public, key.secret)
    assert zmq.auth.load_certificate(tmp_path / "arm-1.key") == (key.public, None)
    assert path.stat().st_mode & 0o777 == 0o600 and path.stat().st_size < 1000
    assert key.secret.decode() not in (tmp_path / "arm-1.key").read_text()


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_a_secret_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = make_key(tmp_path, "arm-1", "peer")
    path.chmod(mode)
    with pytest.raises(AccessDenied, match="mode 0%o.*chmod 600" % mode):
        keys.load(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x04\x95pickle",
        b'role = "peer"\npublic-key = "short"',
        b"x" * 10000,
        b'role = "peer"\npublic-key = "' + b"~" * 40 + b'"\n',
    ],
)
def test_what_is_no_key_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.key_secret"
    path.touch(0o600)
    path.write_bytes(content)
    with pytest.raises(AccessDenied, match="a.key_secret"):
        keys.load(path)
    with pytest.raises(AccessDenied, match="b.key_secret cannot be read"):
        keys.load(tmp_path / "b.key_secret")


def test_a_libzmq_without_curve_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_key(tmp_path, "arm-1", "peer")
    monkeypatch.setattr(zmq, "has", lambda what: what != "curve")
    with pytest.raises(AccessDenied, match="built without CURVE.*wheel"):
        keys.load(path)


def test_a_service_finds_its_own_key(tmp_path: Path) -> None:
    with pytest.raises(AccessDenied, match="has none; make one with `rollbus keys create hub --role hub`"):
        keys.own_key(tmp_path, "hub")
    make_key(tmp_path, "left", "hub")
    make_key(tmp_path, "actor", "actor")
    assert keys.own_key(tmp_path, "hub").name == "left"
    make_key(tmp_path, "right", "hub")
    with pytest.raises(AccessDenied, match="several: left, right"):
        keys.own_key(tmp_path, "hub")
    make_key(tmp_path, "hub", "hub")
    make_key(tmp_path, "hub-1", "hub")
    assert keys.own_key(tmp_path, "hub", 0).name == "hub"
    assert keys.own_key(tmp_path, "hub", 1).name == "hub-1"


def test_the_list_follows_the_folder(tmp_path: Path) -> None:
    public = keys.load(make_key(tmp_path, "a", "actor")).public.decode()
    listed = keys.AllowList(tmp_path)
    assert listed.get(public) == ("a", "actor", False) and not listed.reread()
    revoke(tmp_path, "a")
    assert listed.get(public) == ("a", "actor", False), "read only when told to"
    assert listed.reread() and listed.get(public) == ("a", "actor", True)
    (tmp_path / "b.key").write_text("junk")
    assert listed.reread() and "b.key" in listed.problems[0] and len(listed) == 1
    assert listed.get(None) is None and listed.get("") is None


# --- addresses ---------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["tcp://0.0.0.0:5", "tcp://192.168.1.5:5", "tcp://*:5", "tcp://[::]:5"])
def test_beyond_loopback_only_with_keys(address: str) -> None:
    with pytest.raises(BindRefused, match="rollbus keys create.*ROLLBUS_KEYS"):
        check_bind(address)
    check_bind(address, keyed=True)
    if "1" in address:
        with pytest.raises(AccessDenied, match="key=FILE"):
            ZmqLink.connect(address)


def test_an_abstract_socket_is_refused() -> None:
    with pytest.raises(BindRefused, match="every user"):
        check_bind("ipc://@name")


def test_addresses_carry_keys() -> None:
    key = b":.#-+=^!/*?&<>()[]{}@%$0123456789abcdefgh"[:40]
    assert split_key(announced("tcp://0.0.0.0:7", "box", key)) == ("tcp://box:7", key)
    assert split_key(announced("tcp://[::]:7", "box", key)) == ("tcp://box:7", key)
    assert announced("tcp://10.0.0.2:7", "box", key).startswith("tcp://10.0.0.2:7#")
    assert split_key("ipc:///a#b") == ("ipc:///a#b", b"")


def test_an_ipc_socket_is_for_its_owner_only(tmp_path: Path) -> None:
    code = (
        "import os, sys; os.umask(0)\n"
        "from rollbus_wire.zmq_link import ZmqLink\n"
        "link = ZmqLink.bind('ipc://' + sys.argv[1]); print('%o' % (os.stat(sys.argv[1]).st_mode & 0o777))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "s")], stdout=subprocess.PIPE, timeout=60, check=True
    )
    assert done.stdout.strip() == b"600"
