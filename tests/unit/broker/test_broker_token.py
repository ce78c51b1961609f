"""HTTP beyond loopback: only with a token, and nothing without it."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollbus_broker.broker import Broker
from rollbus_broker.http import HttpServer
from rollbus_broker.metrics import Snapshot, collector_registry
from rollbus_core.config.models import BrokerConfig
from rollbus_core.key_folder import KeyFolder
from rollbus_core.paths import RunPaths
from rollbus_wire.errors import AccessDenied, BindRefused
from rollbus_wire.polling import Poller

TOKEN = b"a-token-of-some-length-0123456789"


@pytest.fixture
def server() -> Iterator[HttpServer]:
    made = HttpServer("127.0.0.1:0", [Snapshot()], TOKEN)
    yield made
    made.stop()


def ask(server: HttpServer, path: str, *headers: tuple[str, str]) -> tuple[int, str]:
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    connection.putrequest("GET", path)
    for name, value in headers:
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_the_token_opens_all_paths(server: HttpServer) -> None:
    bearer = ("Authorization", f"Bearer {TOKEN.decode()}")
    assert ask(server, "/metrics", bearer)[0] == 200
    assert ask(server, "/healthz", ("authorization", f"bearer {TOKEN.decode()}"))[0] == 200
    assert ask(server, "/readyz", bearer)[0] == 503
    assert server.denied == 0


@pytest.mark.parametrize(
    "headers",
    [
        (), (("Authorization", "Bearer"),), (("Authorization", TOKEN.decode()),),
        (("Authorization", f"Basic {TOKEN.decode()}"),),
        (("Authorization", f"Bearer {TOKEN.decode()[:-1]}"),),
        (("Authorization", f"Bearer {TOKEN.decode()}x"),), (("Authorization", "Bearer \xff\xfe"),),
        (("Authorization", "Bearer no"), ("Authorization", f"Bearer {TOKEN.decode()}")),
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/nothing"])
def test_without_it_nothing_is_told(
    server: HttpServer, headers: tuple[tuple[str, str], ...], path: str
) -> None:
    status, text = ask(server, path, *headers)
    assert status == 401 and "rollbus" not in text and "boot" not in text
    assert server.denied == 1


def test_beyond_loopback_needs_the_token() -> None:
    with pytest.raises(BindRefused, match="rollbus keys token.*broker.http_token"):
        HttpServer("0.0.0.0:0", [Snapshot()])
    made = HttpServer("0.0.0.0:0", [Snapshot()], TOKEN)
    assert ask(made, "/metrics")[0] == 401
    made.stop()


def test_the_brokers_token_comes_from_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLBUS_RUNTIME_DIR", str(tmp_path / "shm"))
    keys = KeyFolder(tmp_path / "keys")
    path = keys.token()

    def denied(config: BrokerConfig) -> int:
        broker = Broker(RunPaths(tmp_path / "run"), config)
        try:
            broker.start(Poller())
            assert broker._http is not None
            return ask(broker._http, "/healthz")[0]
        finally:
            broker.stop()

    assert denied(BrokerConfig()) == 200
    assert denied(BrokerConfig(http_token=str(path))) == 401
    monkeypatch.setenv("ROLLBUS_KEYS", str(keys.folder))
    assert denied(BrokerConfig()) == 401, "the key folder has one"
    path.chmod(0o644)
    with pytest.raises(AccessDenied, match="mode 0644"):
        denied(BrokerConfig())
    path.unlink()
    assert denied(BrokerConfig()) == 200
    with pytest.raises(BindRefused):
        denied(BrokerConfig(http="0.0.0.0:0"))


def test_refusals_of_broker_and_members_are_metrics() -> None:
    hub = {
        "role": "hub",
        "name": "hub-0",
        "state": "ready",
        "stats": {"refused": {"peer/revoked/peer": 3, "odd": 1}},
    }
    box = [Snapshot(members=(hub,), refused={"registry/handshake/": 2})]
    found = collector_registry(box)

    def value(**labels: str) -> float | None:
        return found.get_sample_value("rollbus_refused_total", labels)

    assert value(member="hub-0", plane="peer", reason="revoked", role="peer") == 3
    assert value(member="broker-0", plane="registry", reason="handshake", role="") == 2
