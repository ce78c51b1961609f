"""Both planes of a real hub: hello, outcomes and all else of peers, attach and acts of actors, all fuzzed."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from fuzz_services import FedLink, Silent, say_mutated
from harness import Bytes

from rollbus_core.config.models import EnvConfig
from rollbus_simulator.episodes import TrainingEpisodes
from rollbus_simulator.hub import Hub
from rollbus_wire.errors import RollbusError
from rollbus_wire.messages import (
    Act,
    Attach,
    Detach,
    Fault,
    GetState,
    Goodbye,
    Hello,
    Outcome,
    Ping,
    Pong,
    Reset,
    Step,
    Tick,
    Welcome,
)
from rollbus_wire.polling import Poller
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec

SPEC = EnvSpec(
    "toy", {"x": ArraySpec("float32", (2,))}, ActionSpec("continuous", (2,), low=[-1.0] * 2, high=[1.0] * 2),
    has_success=True, time_limit=5,
)  # fmt: skip
ROWS = np.arange(2, dtype=np.int32)
HELLO = Hello([1, 0], SPEC.to_data(), 2, "peer")
_X, _NO = {"x": np.zeros((2, 2), np.float32)}, np.zeros(2, bool)
BEGUN = Outcome(ROWS, _X)
STEPPED = Outcome(ROWS, _X, np.ones(2, np.float32), _NO, _NO, _NO)
PEER = (
    HELLO, BEGUN, STEPPED, Goodbye("x"), Fault("env", "x", "w", "t"), Ping(), Pong(), Welcome(1, [1, 0]),
    Outcome(ROWS, states=[b"a", b"b"]), GetState(ROWS), Step(ROWS, _X["x"]),
)  # fmt: skip
ACTOR = (
    Act("hub-0/0", 1, 1, ROWS, np.zeros((2, 2), np.float32)),
    Act("hub-0/0", 1, 1, ROWS, np.zeros((2, 3, 2), np.float32), np.zeros((2, 8), np.uint8), True),
    Attach("hub-0/0", [1, 1], "actor-0", "nonce-x=00"), Attach("hub-0/0", [0, 0]), Detach("hub-0/0", 1),
    Ping(),
)  # fmt: skip


class _Rig:
    def __init__(self) -> None:
        self.peer, self.data = FedLink(), FedLink()
        self.hub = Hub(
            "hub-0", 0, EnvConfig(placement="dial_in"), num_rows=2, num_slices=1, log=Silent(),
            episodes=TrainingEpisodes(1), data_links=[self.data], peer_link=self.peer,
        )  # fmt: skip
        self.hub.start(Poller())

    def close(self) -> None:
        """Sockets that nobody uses cost descriptors."""
        self.peer.close()
        self.data.close()


_rig = _Rig()
_count = 0


def fuzz(data: bytes) -> None:
    global _rig, _count
    _count += 1
    if _count % 2000 == 0:
        _rig.close()
        _rig = _Rig()
    source = Bytes(data)
    try:
        if source.number(2):
            _until_tick(source)
        while len(source):
            plane = source.number(2)
            say_mutated((_rig.peer, _rig.data)[plane], (PEER, ACTOR)[plane], source)
        _rig.hub.poll()
        _rig.hub.stats()
        _rig.hub.counters.failed_in_a_row = 0
    except RollbusError as error:
        # A peer whose environment fails again and again ends a hub that trains on it: by design.
        if "cannot go on" not in str(error):
            raise
        _rig.close()
        _rig = _Rig()


def _until_tick(source: Bytes) -> None:
    """A peer that dials in and is attached to; then an act, and an outcome, that are nearly right."""
    peer, data, hub = _rig.peer, _rig.data, _rig.hub
    if not hub._peers.sessions or not source.number(8):
        peer.say(HELLO, id=1)
        hub.poll()
    _answer(BEGUN, (Reset,), None)
    if not hub.slices or hub.slices["hub-0/0"].tenure.holder is None or not source.number(8):
        data.say(Attach("hub-0/0", [0, 0]), id=_count + 1000)
        hub.poll()
    for tick in [m for m in data.sent if isinstance(m, Tick)][-1:]:
        fresh = Act("hub-0/0", tick.fence, tick.tick, tick.rows, np.zeros((len(tick.rows), 2), np.float32))
        say_mutated(data, [fresh], source) if source.number(2) else data.say(fresh)
        hub.poll()
        _answer(STEPPED, (Step,), source)


def _answer(outcome: Outcome, kinds: tuple[type, ...], source: Bytes | None) -> None:
    hub = _rig.hub
    for session in hub._peers.sessions:
        for number, request in list(session.open.items()):
            if request.kind != ("reset" if Reset in kinds else "step"):
                continue
            body = None
            if source is not None:
                from harness import mutated

                body = mutated(outcome, source)
            try:
                _rig.peer.say(outcome, re=number, body=body)
            except (RollbusError, OverflowError, ValueError):
                continue
    hub.poll()


def seeds() -> Iterable[bytes]:
    for number in range(len(PEER)):
        yield bytes([0, 0, number, 0, 0, 0, 1, 0])
    for number in range(len(ACTOR)):
        yield bytes([0, 1, number, 0, 0, 0, 1, 0])
    yield bytes([1, 1, 0, 0, 0, 0, 3, 2])
    yield bytes([1, 0, 2, 0, 4, 4, 0, 1, 0])
