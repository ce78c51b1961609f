"""A robot that dials a hub with a key, and loses it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_kit import Log

from rollbus_core.access import Access
from rollbus_core.config.models import EnvConfig
from rollbus_core.key_folder import KeyFolder
from rollbus_envs import toy
from rollbus_simulator.episodes import TrainingEpisodes
from rollbus_simulator.hub import Hub
from rollbus_wire.errors import AccessDenied
from rollbus_wire.link import local_pair
from rollbus_wire.peer import run_env
from rollbus_wire.polling import Poller


@pytest.fixture
def access(tmp_path: Path) -> Iterator[Access]:
    keys = KeyFolder(tmp_path / "keys")
    for name, role in (("broker", "broker"), ("hub", "hub"), ("arm-1", "peer")):
        keys.create(name, role)
    made = Access(keys.folder)
    yield made
    made.close()


def test_a_revoked_robot_is_lost_and_told_why(tmp_path: Path, access: Access) -> None:
    mine, _theirs = local_pair()
    link = access.bind("peer", "tcp://127.0.0.1:0")
    hub = Hub(
        "hub-0", 0, EnvConfig(placement="dial_in"), num_rows=1, num_slices=1, episodes=TrainingEpisodes(1),
        data_links=[mine], peer_link=link, log=Log(), refusals=access.refusals,
    )  # fmt: skip
    hub.start(Poller())
    ended: list[BaseException] = []

    def robot() -> None:
        address = link.endpoint.partition("#")[0]
        try:
            run_env(toy.make(toy.Config(), 1), address, key=tmp_path / "keys" / "arm-1.key_secret")
        except BaseException as error:  # noqa: BLE001 - what it ended with is looked at below
            ended.append(error)

    thread = threading.Thread(target=robot, daemon=True)
    secret = (tmp_path / "keys" / "arm-1.key_secret").read_text()
    thread.start()

    def until(what: str) -> None:
        deadline = time.monotonic() + 60
        while not conditions[what]():
            assert time.monotonic() < deadline, what
            if not hub.poll():
                time.sleep(0.002)

    conditions = {
        "it has come": lambda: hub.stats()["peers"] == 1,
        "it is lost": lambda: hub.counters.peers_lost == 1,
        "it has ended": lambda: ended,
    }
    address = link.endpoint.partition("#")[0]
    assert hub.stats() | {"rows_wanted": 1, "rows_missing": 1, "rows_dial": address} == hub.stats()
    until("it has come")
    assert hub.stats()["rows_missing"] == 0
    KeyFolder(tmp_path / "keys").revoke("arm-1")
    (tmp_path / "keys" / "arm-1.key_secret").touch(0o600)
    (tmp_path / "keys" / "arm-1.key_secret").write_text(secret)  # the robot has its copy
    since = time.monotonic()
    until("it is lost")
    assert time.monotonic() - since < 10 and hub.stats()["peers"] == 0
    # It hears nothing any more, dials in anew after three heartbeats, and is refused by name.
    until("it has ended")
    assert isinstance(ended[0], AccessDenied) and "key arm-1 (role peer) is refused" in str(ended[0])
    assert ended[0].__cause__ is None and ended[0].__suppress_context__ or ended[0].__context__ is None
    assert hub.stats()["refused"]["peer/revoked/peer"] >= 1 and hub.stats()["rows_missing"] == 1
    hub.stop()
