"""Store plane: actor, learner <-> broker. docs/protocol.md is the reference."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional

from .base import Array, Arrays, Message


@dataclass
class OpenTable(Message):
    """Learner to store: create or adopt a table with these settings (`TableConfig` as a map)."""

    table: str
    settings: Dict[str, Any]
    #: Versions of this lineage and below its fork point are alive.
    version: List[int]
    #: `Batch.sequence` up to which the resumed checkpoint has applied deliveries.
    applied: int = 0
    #: A delivery came whose number the learner has had: the store has forgotten the end of its log.
    outrun: bool = False


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
    #: Of the cell's bytes after its header, made by ``digest_kind``.
    digest: int
    #: Oldest and newest version that decided in it, (lineage, number) each.
    oldest: List[int]
    newest: List[int]
    #: First (episode, step) of row 0: the order of chunks in deterministic mode.
    order: List[int] = field(default_factory=list)
    #: Without shared memory: the cell itself.
    cell: Optional[Array] = None
    #: "crc32" or "xxh3".
    digest_kind: str = "crc32"


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
    #: Replay: decisions after each drawn one whose chunks are named, too.
    ahead: int = 0


@dataclass
class Batch(Message):
    """What to read. A chunk is a map: slab, slab_bytes, offset, generation, sequence, lengths,

    num_finals, digest, layout, oldest, newest, order, slice, late (column -> float32 [T, N]). A replay draw
    names thousands of chunks, so ``chunks`` is empty and the C chunks that it uses are arrays instead;
    ``chunk``, ``time`` and ``row`` are int32 [num_batches, batch_size], ``chunk`` in [0, C).
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
    #: Replay, if `Sample.ahead` asked for it: int32 [C], the chunk that followed each one in its slice, in
    #: [0, C); -1: there is none here. Whether an episode goes on there is in the cells.
    chunk_following: Optional[Array] = None
    #: Replay by priority: int64 and float64 [num_batches, batch_size], the number of each step in its table
    #: and how likely it was drawn.
    step: Optional[Array] = None
    probability: Optional[Array] = None
    #: Replay: late columns of the steps that were drawn, float32 [num_batches, batch_size] each.
    late: Optional[Arrays] = None


@dataclass
class Consumed(Message):
    """Learner to store: an update is done; ``version`` is what it made. Moves the tickets on.

    From a table that draws by priority: new ones, float32 [B], of the drawn ``step`` int64 [B].
    """

    table: str
    sequence: int
    version: List[int]
    updates: int
    step: Optional[Array] = None
    priority: Optional[Array] = None


@dataclass
class Durable(Message):
    """Learner to store: a checkpoint is on disk that has applied deliveries up to ``sequence``."""

    table: str
    sequence: int


@dataclass
class FetchUnannotated(Message):
    """Annotator to store: a chunk that waits for ``column``. Waits until there is one."""

    table: str
    column: str


@dataclass
class Unannotated(Message):
    """A chunk to annotate, as in `Batch`, and how long it will wait."""

    table: str
    column: str
    chunk: Dict[str, Any]
    left_s: float


@dataclass
class Annotate(Message):
    """Annotator to store: ``column`` of the chunk ``sequence``, float32 [T, N], T its longest row."""

    table: str
    column: str
    sequence: int
    values: Array


@dataclass
class Annotated(Message):
    """``outcome``: "attached"; "again", it was there already; "late", the chunk has gone on without it."""

    table: str
    column: str
    sequence: int
    outcome: str
