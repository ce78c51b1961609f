"""Every message of the registry plane, its fields fuzzed, into the real registry."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from fuzz_services import FedLink, Silent, folder, say_mutated
from harness import Bytes

from rollbus_broker.metrics import Snapshot, SnapshotCollector
from rollbus_broker.registry.boot import BootFile
from rollbus_broker.registry.registry import Registry
from rollbus_core.config.models import BrokerConfig
from rollbus_core.paths import RunPaths
from rollbus_wire.messages import (
    Applied,
    CheckpointSaved,
    Command,
    Done,
    Evaluated,
    Gone,
    Heartbeat,
    Leave,
    ListMembers,
    Notice,
    Ping,
    Register,
    Released,
    SlicesChanged,
)

SLICE = {"slice": "hub-0/0", "rows": 4, "endpoint": "ipc:///nowhere"}
EXAMPLES = (
    Register("hub", "hub-0", "f", 1, "h", [1, 0], slices=[SLICE]),
    Register("actor", "actor-0", "f", 1, "h", [1, 0]),
    Heartbeat("run", 0.5, 2.0, "run", "", {"held": {"hub-0/0": "ipc://hub-0"}, "steps": 3}),
    Released("hub-0/0", [1, 1], "r"), SlicesChanged([SLICE]), Notice("policy", [0, 1], 0, 1, 7, 100),
    Applied("policy", [0, 1]), CheckpointSaved("p", [0, 1], 10, 1), Evaluated("p", [0, 1], 10, {"r": 1.0}),
    Gone("hub", "hub-0", 1, "x"), Command("scale", {"actor": 2}), Done({"a": 1}), ListMembers(), Leave("x"),
    Ping(),
)  # fmt: skip
_times = itertools.count(1)
_link = FedLink()
_paths = RunPaths(folder() / "run")
_paths.create()
_boot = BootFile(_paths.store / "boot.json")
_boot.save = lambda: None  # type: ignore[method-assign]  # a disk is not what is tested
_registry = Registry(_link, _paths, BrokerConfig(), _boot, 0.0, log=Silent())


def fuzz(data: bytes) -> None:
    source = Bytes(data)
    while len(source):
        say_mutated(_link, EXAMPLES, source)
    now = 0.1 * next(_times)
    _registry.poll(now)
    members = tuple(_registry.members(now))
    list(SnapshotCollector([Snapshot(True, 1, members)]).collect())
    _registry.stop_requested = False


def seeds() -> Iterable[bytes]:
    for number in range(len(EXAMPLES)):
        yield bytes([number, 0, 0, 0, 1, 0])
