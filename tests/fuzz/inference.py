"""What hubs send into the holdings of a real actor (grants, ticks), and requests into the policy service."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from fuzz_services import FedLink, say_mutated
from harness import Bytes
from hub import SPEC

from rollbus_actor.actor import Actor
from rollbus_actor.engines.base import Forward
from rollbus_core.config.models import ActorConfig
from rollbus_core.version import Version
from rollbus_launch.policy_service.service import PolicyService
from rollbus_policies.base import Act as Decided
from rollbus_policies.base import PolicySpec
from rollbus_wire.errors import FaultReceived
from rollbus_wire.messages import Attached, Decide, Detached, Fault, Ping, Tick
from rollbus_wire.messages.data import plain_fields
from rollbus_wire.polling import Poller

ROWS = np.arange(2, dtype=np.int32)
_X, _NO = {"x": np.zeros((2, 2), np.float32)}, {"x": np.zeros((0, 2), np.float32)}
_plain = plain_fields(2)


def tick(fence: int, number: int) -> Tick:
    """A sound tick of both rows."""
    return Tick(
        "hub-0/0", fence, number, ROWS, _X, np.zeros(2, np.int64), np.ones(2, np.int32), final_obs=_NO,
        reward=np.zeros((2, 1), np.float32), seed=np.zeros(2, np.int64), **_plain,
    )  # fmt: skip


ATTACHED = Attached("hub-0/0", 1, 2, SPEC.to_data())
HUB = (
    ATTACHED, tick(1, 1), Detached("hub-0/0", 1, "x"), Fault("unknown-slice", "x"), Ping(),
    Attached("hub-0/0", 1, 2, SPEC.to_data(), carry=np.zeros((2, 8), np.uint8), slab=1, slab_bytes=4096),
)  # fmt: skip
DECIDE = (Decide(_X), Decide(_X, np.zeros((2, 8), np.uint8), np.zeros(2, np.uint64)), Ping())


class Engine:
    """Zeros for every row."""

    version = Version(0, 1)
    spec = PolicySpec(action=("float32", (2,)), extras={})

    def act(self, obs, state, ask, seeds):  # type: ignore[no-untyped-def]
        action = np.zeros((len(obs["x"]), 2), np.float32)
        return Forward(Decided(action, action, state, {}), self.version)


class _Rig:
    def __init__(self) -> None:
        self.hub = FedLink(bound=False)
        self.actor = Actor(
            "actor-0", ActorConfig(), engine=Engine(), policy_spec=Engine.spec, connect=lambda _: self.hub
        )
        self.actor.start(Poller())
        self.actor.take("hub-0/0", "nowhere")


_rig = _Rig()
_policy_link = FedLink()
_policy = PolicyService(_policy_link, Engine(), SPEC, Engine.spec)
_policy.start(Poller())


def fuzz(data: bytes) -> None:
    global _rig
    source = Bytes(data)
    how = source.number(3)
    if how == 0:
        while len(source):
            say_mutated(_policy_link, DECIDE, source)
        _policy.poll()
        return
    try:
        session = _rig.actor.holdings.sessions.get("hub-0/0")
        if how == 1 and session is not None and not session.held:
            _rig.hub.say(ATTACHED, re=session.attach_id)
            _rig.actor.poll()
            say_mutated(_rig.hub, [tick(1, 1)], source)
        while len(source):
            say_mutated(_rig.hub, HUB, source)
        _rig.actor.poll()
        _rig.actor.numbers()
    except FaultReceived:
        pass  # a hub that refuses an action ends its actor: by design
    if "hub-0/0" not in _rig.actor.holdings.sessions or how == 1:
        _rig.hub.close()
        _rig = _Rig()


def seeds() -> Iterable[bytes]:
    for number in range(len(DECIDE)):
        yield bytes([0, number, 0, 0, 0, 1, 0])
    for number in range(len(HUB)):
        yield bytes([2, number, 0, 0, 0, 1, 0])
    yield bytes([1, 0, 2, 4, 1, 1, 3, 2, 7, 7])
