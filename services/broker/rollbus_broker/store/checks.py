"""What comes from an actor is checked before it is believed: layouts and commits."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np

from rollbus_broker.store.pool import SlabPool
from rollbus_broker.store.records import TicketInfo
from rollbus_core.columns import Layout
from rollbus_core.weights.digests import digest
from rollbus_wire.messages import Commit

_MAX_LAYOUTS = 4096


class LayoutCache:
    """Layouts by their bytes: an actor names the same few thousands of times."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[Layout, str]] = {}

    def read(self, data: dict[str, Any]) -> tuple[Layout, str]:
        """The layout and its key. Raises `SpecError`."""
        packed = msgpack.packb(data)
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
    if lengths.min() < 0 or lengths.max() > ticket.num_decisions or not lengths.any():
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
    return "" if digest(content, message.digest_kind) == message.digest else "corrupt"
