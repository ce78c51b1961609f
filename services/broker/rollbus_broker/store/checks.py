"""What comes over the store plane is checked before it is believed."""

from __future__ import annotations

import hashlib
from typing import Any

import msgpack
import numpy as np

from rollbus_broker.store.pool import SlabPool
from rollbus_broker.store.records import Chunk, TicketInfo
from rollbus_core.columns import Layout
from rollbus_core.weights.digests import digest
from rollbus_wire.errors import ConfigError, LimitExceeded, MissingPackage, SpecError, WireError, short
from rollbus_wire.messages import Commit, Consumed, Sample

_MAX_LAYOUTS = 4096
#: Requests that may wait for tickets, and for batches; tables; order numbers of one chunk.
MAX_WAITING, MAX_TABLES, MAX_ORDER = 1 << 14, 64, 16
#: Steps of one draw, and the largest number of a delivery or an update.
MAX_DRAW, MAX_COUNT, MAX_AHEAD = 1 << 24, 1 << 53, 1 << 16


class LayoutCache:
    """Layouts by the digest of their bytes: an actor names the same few thousands of times."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[Layout, str]] = {}

    def read(self, data: dict[str, Any]) -> tuple[Layout, str]:
        """The layout and its key. Raises `SpecError`."""
        try:
            packed = hashlib.sha256(msgpack.packb(data)).digest()
        except (TypeError, ValueError) as error:
            raise SpecError(f"chunk layout is not readable: {short(error)}") from None
        found = self._known.get(packed)
        if found is None:
            layout = Layout.from_data(data)
            if len(self._known) >= _MAX_LAYOUTS:
                self._known.clear()
            found = self._known[packed] = (layout, layout.key)
        return found


def check(message: Commit, ticket: TicketInfo, pool: SlabPool) -> str:
    """Take over ``message.cell`` if there is one; "" if the cell holds what the commit says.

    Else "corrupt": lengths that do not fit the ticket, another generation, another digest.
    """
    lengths, slab = message.lengths, pool.slabs[ticket.cell.slab]
    if lengths.shape != (ticket.num_rows,) or lengths.dtype.kind not in "iu":
        return "corrupt"
    if lengths.min() < 0 or not 0 < lengths.max() <= ticket.num_decisions:
        return "corrupt"
    if not 0 <= message.num_finals <= slab.layout.num_finals:
        return "corrupt"
    content = pool.content(ticket.cell)
    if message.cell is not None:
        data = np.ascontiguousarray(message.cell).reshape(-1).view(np.uint8)
        if len(data) != slab.cell_bytes:
            return "corrupt"
        content[:] = data[-len(content) :].data
    if pool.generation(ticket.cell) != ticket.cell.generation:
        return "corrupt"
    try:
        return "" if digest(content, message.digest_kind) == message.digest else "corrupt"
    except MissingPackage:
        return "corrupt"


def check_counts(*values: int) -> None:
    """Raise `WireError` for a number of a delivery or an update that cannot be."""
    for value in values:
        if not 0 <= value <= MAX_COUNT:
            raise WireError(f"{value} is no number of a delivery or update (0 to {MAX_COUNT})")


def check_draw(message: Sample, *, is_replay: bool) -> None:
    """Raise `WireError` for a draw that nobody could answer, `ConfigError` for one of no steps."""
    if is_replay and message.num_batches * message.batch_size < 1:
        raise ConfigError(f"a draw from table {message.table!r} needs num_batches and batch_size >= 1")
    if not 0 <= message.ahead <= MAX_AHEAD:
        raise WireError(f"a draw that looks {message.ahead} decisions ahead; 0 to {MAX_AHEAD}")
    least = min(message.num_batches, message.batch_size, message.seed)
    if least < 0 or message.num_batches * message.batch_size > MAX_DRAW:
        raise WireError(
            f"a draw of {message.num_batches} x {message.batch_size} steps with seed {message.seed}; at most "
            f"{MAX_DRAW} steps, nothing below 0"
        )


def priorities_of(message: Consumed) -> tuple[np.ndarray, np.ndarray] | None:
    """(steps, priorities) [B], or None. Raises `WireError` unless there is one number per step."""
    step, priority = message.step, message.priority
    if step is None and priority is None:
        return None
    if not isinstance(step, np.ndarray) or not isinstance(priority, np.ndarray):
        raise WireError("priorities come as two arrays, step and priority")
    if step.shape != priority.shape or step.ndim != 1 or (step.dtype.kind, priority.dtype.kind) != ("i", "f"):
        raise WireError("priorities are floats [B] for integer steps [B]; these are not")
    if len(step) > MAX_DRAW:
        raise WireError(f"priorities of {len(step)} steps; at most {MAX_DRAW}")
    return step, priority


def check_room(num_waiting: int) -> None:
    """Raise `LimitExceeded` if no more requests may wait."""
    if num_waiting >= MAX_WAITING:
        raise LimitExceeded(f"{num_waiting} such requests wait already; ask again later")


def is_whole(chunk: Chunk, pool: SlabPool, fsync: bool) -> bool:
    """Whether an adopted cell still holds the chunk; with ``fsync``, after power loss, byte by byte."""
    if pool.generation(chunk.cell) != chunk.cell.generation:
        return False
    return not fsync or digest(pool.content(chunk.cell), chunk.digest_kind) == chunk.digest
