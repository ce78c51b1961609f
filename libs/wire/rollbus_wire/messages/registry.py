"""Registry plane: any service <-> broker. docs/protocol.md is the reference."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List

from .base import Message


@dataclass
class Register(Message):
    """A service joins. ``producer`` is random per process start."""

    role: str
    name: str
    producer: str
    pid: int
    host: str
    protocol: List[int]
    fields_hash: str = ""
    #: Hub: [{"slice", "rows", "endpoint"}].
    slices: List[Any] = field(default_factory=list)
    #: Proof of a shared memory domain: a path under the run's folder and what it held.
    nonce: str = ""


@dataclass
class Registered(Message):
    """The broker knows the service."""

    boot: int
    #: How often this (role, name) has registered before: 0 at the first start.
    incarnation: int
    #: Seconds between heartbeats, and of silence after which a member is lost.
    heartbeat_s: float
    lost_after_s: float
    same_memory: bool = True
    #: The last `Notice` of each policy, as maps, so that a late joiner misses nothing.
    notices: List[Any] = field(default_factory=list)


@dataclass
class Heartbeat(Message):
    """I am alive and in this stage; ``deadline_s`` is how long the stage may last."""

    stage: str
    since_s: float
    deadline_s: float
    state: str = "run"
    #: The last exception, as text.
    failure: str = ""
    #: Numbers for `rollbus ps` and /metrics.
    stats: Dict[str, Any] = field(default_factory=dict)


@dataclass
class Assign(Message):
    """Broker to actor: take this slice from the hub at ``endpoint``."""

    slice: str
    endpoint: str
    assignment: List[int]


@dataclass
class Release(Message):
    """Broker to actor: cut the chunk at this tick, commit, detach, answer `Released`."""

    slice: str
    assignment: List[int]


@dataclass
class Released(Message):
    """Actor to broker: the slice is free (released, refused by its hub, or lost)."""

    slice: str
    assignment: List[int]
    reason: str = ""


@dataclass
class SlicesChanged(Message):
    """Hub to broker: the slices the hub has now (a peer came or went)."""

    slices: List[Any]


@dataclass
class Notice(Message):
    """A weight version is in a buffer of the slot. Learner -> broker -> actors."""

    policy: str
    #: (lineage, number).
    version: List[int]
    buffer: int
    generation: int
    digest: int
    num_bytes: int
    #: The run folder's path of the slot, for members of the same memory domain.
    slot: str = ""
    #: What made ``digest``: "crc32" or "xxh3", over blocks of 16 MiB (docs/protocol.md, "Weights").
    digest_kind: str = "crc32"
    #: When publishing began: Unix time, and the monotonic clock of that machine's ``boot``.
    published_s: float = 0.0
    published_mono_s: float = 0.0
    boot: str = ""
    #: Where other hosts fetch it (plane ``weights``); empty: nowhere.
    stream: str = ""


@dataclass
class Applied(Message):
    """Actor -> broker -> learner: this version acts now."""

    policy: str
    version: List[int]
    delay_s: float = 0.0


@dataclass
class CheckpointSaved(Message):
    """Learner -> broker -> evaluators and launcher."""

    path: str
    version: List[int]
    env_steps: int
    updates: int
    final: bool = False


@dataclass
class Evaluated(Message):
    """Evaluator -> broker -> learner and launcher: the result of one evaluation."""

    path: str
    version: List[int]
    env_steps: int
    result: Dict[str, Any]


@dataclass
class Gone(Message):
    """Launcher -> broker: the process of this member has ended."""

    role: str
    name: str
    pid: int
    reason: str


@dataclass
class Command(Message):
    """A person or the launcher asks: ``scale``, ``drain``, ``stop``."""

    name: str
    arguments: Dict[str, Any] = field(default_factory=dict)


@dataclass
class Done(Message):
    """A request was carried out; ``data`` holds its answer."""

    data: Dict[str, Any] = field(default_factory=dict)


@dataclass
class ListMembers(Message):
    """Who is there? Answered by `Members`."""

    #: A nonce of the asker (`rollbus_wire.shm`), to be told whether it shares the broker's memory.
    memory: str = ""


@dataclass
class Members(Message):
    """Each member as a map: role, name, pid, host, state, stage, since, failure, slices, stats."""

    members: List[Any]
    boot: int = 0
    tables: List[Any] = field(default_factory=list)
    #: The broker has read the asker's nonce back.
    same_memory: bool = False


@dataclass
class Leave(Message):
    """A member ends its membership in order."""

    reason: str = ""
