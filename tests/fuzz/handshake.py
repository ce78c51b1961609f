"""A hub's bytes into the real environment side (`Peer`), and a peer's hello into a fresh hub."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from fuzz_services import FedLink, Silent, say_mutated
from harness import Bytes
from hub import HELLO, SPEC

from rollbus_core.config.models import EnvConfig
from rollbus_simulator.episodes import TrainingEpisodes
from rollbus_simulator.hub import Hub
from rollbus_wire.env import Env, StepResult
from rollbus_wire.messages import (
    Fault,
    GetState,
    Goodbye,
    Hello,
    Observe,
    Ping,
    Reset,
    SetState,
    Step,
    Welcome,
)
from rollbus_wire.peer import Peer
from rollbus_wire.polling import Poller

ROWS = np.arange(2, dtype=np.int32)
HUB = (
    Welcome(1, [1, 0]), Reset(ROWS, np.arange(2), [{}, {}]), Step(ROWS, np.zeros((2, 2), np.float32)),
    Observe(ROWS), GetState(ROWS), SetState(ROWS, [b"a", b"b"]), Ping(), Goodbye("x", True),
    Fault("unknown-peer", "x"), HELLO,
)  # fmt: skip


class Still(Env):
    """Two rows that never move."""

    spec, num_rows = SPEC, 2

    def reset(self, rows, seeds, options):  # type: ignore[no-untyped-def]
        return self.observe(rows)

    def step(self, rows, actions, observe):  # type: ignore[no-untyped-def]
        none = np.zeros(len(rows), bool)
        obs = self.observe(rows) if observe else None
        return StepResult(obs, np.zeros(len(rows), np.float32), none, none, none)

    def observe(self, rows):  # type: ignore[no-untyped-def]
        return {"x": np.zeros((len(rows), 2), np.float32)}


def fuzz(data: bytes) -> None:
    source = Bytes(data)
    if source.number(4):
        link = FedLink(bound=False)
        peer = Peer(Still(), link, "p")
        peer.dial()
        while len(source):
            say_mutated(link, HUB, source)
        peer.poll()
        link.close()
        return
    link = FedLink()
    hub = Hub(
        "hub-0", 0, EnvConfig(placement="dial_in"), num_rows=2, num_slices=1, log=Silent(),
        episodes=TrainingEpisodes(1), data_links=[], peer_link=link,
    )  # fmt: skip
    hub.start(Poller())
    say_mutated(link, (HELLO, Hello([1, 0], SPEC.to_data(), 1)), source)
    hub.poll()
    link.say(HELLO, id=9)
    hub.poll()
    link.close()


def seeds() -> Iterable[bytes]:
    for number in range(len(HUB)):
        yield bytes([1, number, 0, 0, 0, 1, 0])
    yield bytes([0, 0, 0, 1, 3, 1, 2, 4])
