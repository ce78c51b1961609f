"""`rollbus keys` on a folder, and how services of a process bind and dial with it."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rollbus_core.access import Access
from rollbus_core.key_folder import HTTP_TOKEN, KeyFolder, configured, default_folder, read_token
from rollbus_core.paths import RunPaths
from rollbus_wire.errors import AccessDenied, BindRefused, ConfigError
from rollbus_wire.keys import load
from rollbus_wire.messages import FetchWeights, Ping, Pong
from rollbus_wire.polling import wait_reply
from rollbus_wire.zmq_link import ZmqLink


@pytest.fixture
def keys(tmp_path: Path) -> KeyFolder:
    made = KeyFolder(tmp_path / "keys")
    for role in ("broker", "hub", "learner", "actor", "admin"):
        made.create(role, role)
    return made


@pytest.fixture
def accesses() -> Iterator[Callable[[Path | None], Access]]:
    made: list[Access] = []

    def make(folder: Path | None) -> Access:
        made.append(Access(folder))
        return made[-1]

    yield make
    for each in made:
        each.close()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0o022, 0o000])
def test_keys_are_made_for_their_owner_alone(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        made = KeyFolder(tmp_path / "a" / "keys")
        made.create("hub", "broker")
        token = made.token()
        made.revoke("hub")
    finally:
        os.umask(before)
    assert mode(made.folder) == mode(made.folder / "revoked") == 0o700
    files = [path for path in made.folder.rglob("*") if path.is_file()]
    assert len(files) == 2 and {mode(path) for path in files} == {0o600}
    assert len(read_token(token)) >= 40


def test_each_key_names_the_server_that_its_role_dials(keys: KeyFolder) -> None:
    assert load(keys.create("arm-1", "peer")).server == "hub"
    assert load(keys.folder / "hub.key_secret").server == "broker"
    assert load(keys.folder / "broker.key_secret").server == ""
    keys.create("hub-b", "hub")
    with pytest.raises(AccessDenied, match="several: say which with --server, one of: hub, hub-b"):
        keys.create("arm-2", "peer")
    arm = load(keys.create("arm-2", "peer", "hub-b"))
    assert arm.server_key == load(keys.folder / "hub-b.key_secret").public


def test_what_cannot_be_made_is_said(keys: KeyFolder, tmp_path: Path) -> None:
    with pytest.raises(AccessDenied, match="has a key hub; revoke it first"):
        keys.create("hub", "hub")
    with pytest.raises(AccessDenied, match="role 'king' is none of"):
        keys.create("x", "king")
    for name in ("../x", "", "a/b", "x" * 65, ".x"):
        with pytest.raises(AccessDenied, match="key name"):
            keys.create(name, "peer")
    with pytest.raises(AccessDenied, match="first: rollbus keys create hub --role hub"):
        KeyFolder(tmp_path / "empty").create("arm", "peer")
    with pytest.raises(AccessDenied, match="no key nobody; keys there: actor, admin"):
        keys.revoke("nobody")
    keys.folder.chmod(0o755)
    with pytest.raises(AccessDenied, match="mode 0755.*chmod 700"):
        keys.create("y", "peer", "hub")


def test_the_list_shows_the_revoked_too(keys: KeyFolder) -> None:
    keys.create("arm-1", "peer")
    keys.revoke("arm-1")
    with pytest.raises(AccessDenied, match=f"the key arm-1 in {keys.folder} is revoked already"):
        keys.revoke("arm-1")
    keys.create("arm-1", "peer")
    rows = [(r["name"], r["state"], r["secret_here"]) for r in keys.rows() if r["role"] == "peer"]
    assert rows == [("arm-1", "allowed", True), ("arm-1", "revoked", False)]


def test_where_keys_are() -> None:
    assert configured({}) is None and configured({"ROLLBUS_KEYS": "/k"}) == Path("/k")
    assert default_folder({"XDG_CONFIG_HOME": "/c"}) == Path("/c/rollbus/keys")
    assert default_folder({"XDG_CONFIG_HOME": "/c", "ROLLBUS_KEYS": "/k"}) == Path("/k")


@pytest.mark.parametrize(
    ("text", "bits", "what"), [("short", 0o600, "5 characters"), ("x" * 40, 0o644, "mode 0644")]
)
def test_a_token_that_is_none_is_refused(tmp_path: Path, text: str, bits: int, what: str) -> None:
    path = tmp_path / HTTP_TOKEN
    path.write_text(text)
    path.chmod(bits)
    with pytest.raises(AccessDenied, match=what):
        read_token(path)


# --- binding and dialling ---------------------------------------------------------------------------


def test_without_keys_nothing_beyond_loopback(accesses: Callable[[Path | None], Access]) -> None:
    access = accesses(None)
    with pytest.raises(BindRefused, match="ROLLBUS_KEYS"):
        access.bind("registry", "tcp://0.0.0.0:0")
    with pytest.raises(AccessDenied, match="dialled with a key only"):
        access.connect("actor", "tcp://192.0.2.1:5")
    link = access.bind("registry", "tcp://127.0.0.1:0")
    assert "#" not in link.endpoint and not access.refusals()
    link.close()


def test_with_keys_every_tcp_address_has_them_and_no_unix_socket(
    keys: KeyFolder, tmp_path: Path, accesses: Callable[[Path | None], Access]
) -> None:
    access = accesses(keys.folder)
    ipc, tcp = access.bind("data", f"ipc://{tmp_path}/d"), access.bind("data", "tcp://127.0.0.1:0")
    for bound in (ipc, tcp):
        link = access.connect("actor", bound.endpoint)
        exchange(bound, link)
        link.close()
    assert "#" in tcp.endpoint and "#" not in ipc.endpoint
    ipc.close()
    tcp.close()


def test_an_actor_dials_whom_the_registry_names(
    keys: KeyFolder, accesses: Callable[[Path | None], Access]
) -> None:
    """Two hubs with keys of their own: the address says whom to expect."""
    keys.create("hub-1", "hub")
    access = accesses(keys.folder)
    bound = [access.bind("data", "tcp://127.0.0.1:0", index=index) for index in range(2)]
    assert bound[0].endpoint.partition("#")[2] != bound[1].endpoint.partition("#")[2]
    for each in bound:
        link = access.connect("actor", each.endpoint)
        exchange(each, link)
        link.close()
        each.close()


def test_refusals_are_told_by_plane_reason_and_role(
    keys: KeyFolder, accesses: Callable[[Path | None], Access]
) -> None:
    access = accesses(keys.folder)
    bound = access.bind("weights", "tcp://127.0.0.1:0")
    link = access.connect("hub", bound.endpoint)
    link.send(FetchWeights("policy"))
    with pytest.raises(AccessDenied, match="key hub .role hub. is refused"):
        exchange(bound, link)
    assert access.refusals() == {"weights/role/hub": 1}
    link.close()
    bound.close()


def exchange(bound: ZmqLink, dialled: ZmqLink) -> None:
    request = dialled.send(Ping())
    deadline = time.monotonic() + 10
    while (envelope := bound.recv()) is None:
        assert time.monotonic() < deadline
        dialled.recv()  # raises if the key is refused
        time.sleep(0.005)
    bound.send(Pong(), to=envelope.peer, re=envelope.id)
    assert isinstance(wait_reply(dialled, request, 10.0), Pong)


# --- folders of a run --------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o022, 0o000])
def test_a_run_is_its_owners_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, umask: int) -> None:
    monkeypatch.setenv("ROLLBUS_RUNTIME_DIR", str(tmp_path / "shm"))
    paths, before = RunPaths(tmp_path / "runs" / "a"), os.umask(umask)
    try:
        paths.create()
    finally:
        os.umask(before)
    for folder in (paths.root, paths.logs, paths.checkpoints, paths.store, paths.runtime):
        assert mode(folder) == 0o700, folder


def test_a_runtime_folder_that_another_has_made_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name can be foreseen: whoever makes it first would own the sockets and slabs in it."""
    monkeypatch.setenv("ROLLBUS_RUNTIME_DIR", str(tmp_path))
    paths = RunPaths(tmp_path / "run")
    paths.runtime.mkdir(mode=0o700)
    paths.runtime.chmod(0o777)
    with pytest.raises(ConfigError, match="mode 0777.*somebody else"):
        paths.create()
    paths.runtime.rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    paths.runtime.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="somebody else"), paths.alive():
        pass
    paths.runtime.unlink()
    if os.geteuid() == 0:
        paths.runtime.mkdir(mode=0o700)
        os.chown(paths.runtime, 12345, 12345)
        with pytest.raises(ConfigError, match="owner 12345"):
            paths.create()
