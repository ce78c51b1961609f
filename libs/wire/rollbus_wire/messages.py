"""Every message of the wire, one dataclass each. docs/protocol.md is the reference.

Planes: ``peer`` (environment or robot <-> hub), ``data`` (hub <-> actor), ``registry`` (any
service <-> broker) and ``store`` (actor, learner <-> broker). A message is named by its snake-case
class name. Unknown fields are ignored, missing ones take their default.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Dict, List, Optional, Type

import numpy as np

from .errors import WireError

#: Another major version is refused; a minor one is logged.
PROTOCOL = (1, 0)

Array = np.ndarray
Arrays = Dict[str, np.ndarray]


class Message:
    """Base of all messages."""

    kind = ""
    plane = ""


# --- any plane ------------------------------------------------------------------------------


@dataclass
class Fault(Message):
    """What was asked cannot be done. The session goes on unless the text says otherwise."""

    code: str
    text: str
    #: Service, stage or row that failed.
    where: str = ""
    traceback: str = ""


@dataclass
class Ping(Message):
    """Are you there? Answered by `Pong` on every plane."""


@dataclass
class Pong(Message):
    """I am."""


# --- peer plane: environment or robot <-> hub -------------------------------------------------


@dataclass
class Hello(Message):
    """A peer dials in: how many rows it offers and what they are."""

    protocol: List[int]
    spec: Dict[str, Any]
    num_rows: int
    name: str = ""
    fields_hash: str = ""


@dataclass
class Welcome(Message):
    """The hub takes the peer."""

    peer: int
    protocol: List[int]
    fields_hash: str = ""
    #: The hub pings an idle peer this often; a peer that hears nothing for three of these dials
    #: in again.
    heartbeat_s: float = 5.0


@dataclass
class Reset(Message):
    """Start an episode on each of ``rows`` (int32 [R]) from ``seeds`` (int64 [R])."""

    rows: Array
    seeds: Array
    #: One map per row, or empty.
    options: List[Any] = field(default_factory=list)


@dataclass
class Step(Message):
    """One environment step on each of ``rows``; ``actions`` is [R, ...]."""

    rows: Array
    actions: Array
    #: Whether the answer must hold observations.
    observe: bool = True


@dataclass
class Observe(Message):
    """Observations of ``rows`` as they are now."""

    rows: Array


@dataclass
class GetState(Message):
    """The full simulator state of ``rows``, where the environment can give it."""

    rows: Array


@dataclass
class SetState(Message):
    """Put ``rows`` into states that `GetState` gave."""

    rows: Array
    states: List[bytes]


@dataclass
class Outcome(Message):
    """The answer to `Reset`, `Step`, `Observe`, `GetState` and `SetState`; arrays are [R, ...]."""

    rows: Array
    obs: Optional[Arrays] = None
    reward: Optional[Array] = None
    terminated: Optional[Array] = None
    truncated: Optional[Array] = None
    #: Success after the step, where the spec has it.
    success: Optional[Array] = None
    states: Optional[List[bytes]] = None
    #: Further named columns, only those the hub asked for.
    extras: Optional[Arrays] = None


@dataclass
class Goodbye(Message):
    """The sender ends the session."""

    reason: str = ""


# --- data plane: hub <-> actor ----------------------------------------------------------------


@dataclass
class Attach(Message):
    """An actor asks for a slice. ``assignment`` is (broker boot, number), or (0, 0) without one."""

    slice: str
    assignment: List[int]
    actor: str = ""


@dataclass
class Attached(Message):
    """The hub grants the slice under a new fence; older fences are dead from here on."""

    slice: str
    fence: int
    num_rows: int
    spec: Dict[str, Any]
    #: Whether steps may be recorded; evaluation and deployment act without tickets.
    record: bool = True
    #: Opaque recurrent state per row, uint8 [N, B], or None at the first attachment.
    carry: Optional[Array] = None
    #: The frames before the current one, [K-1, N, ...] per key, for frame stacks.
    history: Optional[Arrays] = None


@dataclass
class Tick(Message):
    """Rows of a slice that wait for a decision, with the outcome of their last one.

    R rows are ready, M of them just ended an episode. In the first tick under a fence no row has
    an outcome: ``num_steps`` is 0 for it.
    """

    slice: str
    fence: int
    tick: int
    #: int32 [R], places in the slice.
    rows: Array
    #: Observation to act on, [R, ...] per key: of the new episode where one ended.
    obs: Arrays
    #: int64 [R] episode ids and int32 [R] steps already taken in the episode.
    episode: Array
    step: Array
    #: Environment steps the last decision executed, int32 [R]; 0: no outcome under this fence.
    num_steps: Array
    #: float32 [R, C], reward of each executed step, zero beyond ``num_steps``.
    reward: Array
    terminated: Array
    truncated: Array
    #: The episode was cut because infrastructure was lost: neither outcome nor bootstrap.
    interrupted: Array
    #: Places in ``rows`` whose episode ended, int32 [M], and what ended there.
    final: Array
    final_obs: Arrays
    final_return: Array
    final_length: Array
    #: int8 [M]: 1 success, 0 failure, -1 where the environment has no success signal.
    final_success_once: Array
    final_success_at_end: Array
    #: The seed each row's running episode began with, int64 [R].
    seed: Optional[Array] = None
    extras: Optional[Arrays] = None


@dataclass
class Act(Message):
    """The decision for ``rows`` of one tick; applied at most once per (slice, fence, tick, row)."""

    slice: str
    fence: int
    tick: int
    rows: Array
    #: [R, ...] one action per row, or [R, C, ...] an action chunk.
    action: Array
    #: Recurrent state after this decision, uint8 [R, B].
    carry: Optional[Array] = None
    #: Whether ``action`` has the chunk dimension C.
    chunked: bool = False


@dataclass
class Detach(Message):
    """The holder gives a slice up (it was released, or it is leaving)."""

    slice: str
    fence: int


@dataclass
class Detached(Message):
    """Another holder took the slice, or the hub closes it."""

    slice: str
    fence: int
    reason: str = ""


# --- registry plane: any service <-> broker ---------------------------------------------------


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
    #: Hub: [{"slice", "rows", "endpoint", "spec"}].
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


@dataclass
class Members(Message):
    """Each member as a map: role, name, pid, host, state, stage, since, failure, slices, stats."""

    members: List[Any]
    boot: int = 0
    tables: List[Any] = field(default_factory=list)


@dataclass
class Leave(Message):
    """A member ends its membership in order."""

    reason: str = ""


# --- store plane: actor, learner <-> broker ---------------------------------------------------


@dataclass
class OpenTable(Message):
    """Learner to store: create or adopt a table with these settings (`TableConfig` as a map)."""

    table: str
    settings: Dict[str, Any]
    #: Versions of this lineage and below its fork point are alive.
    version: List[int]
    #: `Batch.sequence` up to which the resumed checkpoint has applied deliveries.
    applied: int = 0


@dataclass
class TableState(Message):
    """The state of a table; the answer to `OpenTable`, `Consumed` and `Durable`."""

    table: str
    #: Of the last delivery.
    sequence: int
    num_chunks: int
    num_steps: int
    num_bytes: int
    tickets: int
    total_steps: int
    dropped: Dict[str, int] = field(default_factory=dict)


@dataclass
class TicketRequest(Message):
    """An actor wants to begin a chunk. Waits in the store until the table lets it."""

    table: str
    slice: str
    num_rows: int
    #: Decisions per row it would like.
    num_decisions: int
    #: The cell's columns (`Layout.to_data`).
    layout: Dict[str, Any]


@dataclass
class Ticket(Message):
    """Leave to write one chunk into one cell of one slab."""

    ticket: int
    slab: int
    slab_bytes: int
    offset: int
    generation: int
    num_decisions: int
    #: No decision of the chunk may come from an older version: (lineage, number).
    min_version: List[int]
    #: "sample" or "random" (warm-up).
    mode: str = "sample"


@dataclass
class Commit(Message):
    """The chunk is complete: ``lengths`` int32 [N] decisions per row."""

    ticket: int
    lengths: Array
    num_finals: int
    #: CRC-32 of the cell's bytes.
    digest: int
    #: Oldest and newest version that decided in it, (lineage, number) each.
    oldest: List[int]
    newest: List[int]
    #: First (episode, step) of row 0: the order of chunks in deterministic mode.
    order: List[int] = field(default_factory=list)
    #: Without shared memory: the cell itself.
    cell: Optional[Array] = None


@dataclass
class Committed(Message):
    """The chunk is in the log and will not be lost. ``sequence`` is -1 if it was dropped."""

    ticket: int
    sequence: int
    reason: str = ""


@dataclass
class Cancel(Message):
    """Give tickets back unused."""

    tickets: List[int]


@dataclass
class Sample(Message):
    """Learner to store: the next batch of a table. Waits until there is one."""

    table: str
    #: Minibatches of steps to draw from a replay table; 0 from a queue: whole chunks.
    num_batches: int = 0
    batch_size: int = 0
    #: Seed of the draw.
    seed: int = 0


@dataclass
class Batch(Message):
    """What to read. A chunk is a map: slab, slab_bytes, offset, generation, sequence, lengths,

    num_finals, digest, layout, oldest, newest, order, slice. A replay draw names thousands of
    chunks, so ``chunks`` is empty and the C chunks that it uses are arrays instead; ``chunk``,
    ``time`` and ``row`` are int32 [num_batches, batch_size], ``chunk`` in [0, C).
    """

    table: str
    #: Number of this delivery, from 1: what `Consumed`, `Durable` and `OpenTable.applied` name.
    sequence: int
    chunks: List[Any]
    chunk: Optional[Array] = None
    time: Optional[Array] = None
    row: Optional[Array] = None
    #: Steps ever inserted when the batch was drawn.
    total_steps: int = 0
    #: Replay: maps slab, slab_bytes, layout, and per chunk its place in them (int32 [C]), its
    #: offset (int64 [C]) and its generation (uint64 [C]).
    slabs: List[Any] = field(default_factory=list)
    chunk_slab: Optional[Array] = None
    chunk_offset: Optional[Array] = None
    chunk_generation: Optional[Array] = None


@dataclass
class Consumed(Message):
    """Learner to store: an update is done; ``version`` is what it made. Moves the tickets on."""

    table: str
    sequence: int
    version: List[int]
    updates: int


@dataclass
class Durable(Message):
    """Learner to store: a checkpoint is on disk that has applied deliveries up to ``sequence``."""

    table: str
    sequence: int


PLANES = {
    "any": (Fault, Ping, Pong),
    "peer": (
        Hello, Welcome, Reset, Step, Observe, GetState, SetState, Outcome, Goodbye,
    ),
    "data": (Attach, Attached, Tick, Act, Detach, Detached),
    "registry": (
        Register, Registered, Heartbeat, Assign, Release, Released, SlicesChanged, Notice, Applied,
        CheckpointSaved, Evaluated, Gone, Command, Done, ListMembers, Members, Leave,
    ),
    "store": (
        OpenTable, TableState, TicketRequest, Ticket, Commit, Committed, Cancel, Sample, Batch,
        Consumed, Durable,
    ),
}  # fmt: skip

#: How each annotation is checked on arrival.
_CHECKS: Dict[str, Any] = {
    "int": int,
    "float": (float, int),
    "str": str,
    "bool": bool,
    "Array": np.ndarray,
    "Arrays": dict,
    "Dict[str, Any]": dict,
    "Dict[str, int]": dict,
    "List[int]": list,
    "List[Any]": list,
    "List[bytes]": list,
}


class _Table:
    """Field table of one message class."""

    def __init__(self, cls: Type[Message]) -> None:
        self.cls = cls
        self.checks: Dict[str, Any] = {}
        self.required = set()
        for item in fields(cls):  # type: ignore[arg-type]
            annotation = str(item.type)
            optional = annotation.startswith("Optional[")
            check = _CHECKS[annotation[9:-1] if optional else annotation]
            types = check if isinstance(check, tuple) else (check,)
            self.checks[item.name] = types + ((type(None),) if optional else ())
            if item.default is MISSING and item.default_factory is MISSING:
                self.required.add(item.name)


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


_TABLES: Dict[str, _Table] = {}
for _plane, _classes in PLANES.items():
    for _cls in _classes:
        _cls.plane, _cls.kind = _plane, _snake(_cls.__name__)
        _TABLES[_cls.kind] = _Table(_cls)


def fields_hash() -> str:
    """Hash of the field table: equal on both sides when they know the same messages."""
    lines = [
        "%s.%s:%s" % (kind, item.name, item.type)
        for kind, table in sorted(_TABLES.items())
        for item in fields(table.cls)  # type: ignore[arg-type]
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def to_data(message: Message) -> Dict[str, Any]:
    """The body map of ``message``; fields that are None are left out."""
    return {key: value for key, value in message.__dict__.items() if value is not None}


def from_data(kind: str, data: Any) -> Message:
    """The message ``kind`` with body ``data``, each field checked against its declared type."""
    table = _TABLES.get(kind) if isinstance(kind, str) else None
    if table is None:
        raise WireError("unknown message %r" % (kind,))
    if not isinstance(data, dict):
        raise WireError("%s: the body is a %s, not a map" % (kind, type(data).__name__))
    checks = table.checks
    known = {}
    for key, value in data.items():
        types = checks.get(key)
        if types is None:
            continue
        if not isinstance(value, types):
            raise WireError("%s.%s: got %s" % (kind, key, type(value).__name__))
        known[key] = value
    missing = table.required.difference(known)
    if missing:
        raise WireError("%s: missing %s" % (kind, ", ".join(sorted(missing))))
    return table.cls(**known)
