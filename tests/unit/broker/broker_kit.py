"""A small actor and learner for tests of the broker: they speak the real messages."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from rollbus_core.columns import Layout
from rollbus_core.slabs import SlabFolder
from rollbus_wire.link import Link
from rollbus_wire.messages import Commit, Message, OpenTable, Ticket, TicketRequest
from rollbus_wire.polling import wait_reply

QUEUE = {"sampler": "queue", "batch_steps": 64, "max_lag": 0, "max_bytes": 1 << 20}
REPLAY = {"sampler": "replay", "min_steps": 32, "steps_per_update": 8, "max_bytes": 1 << 20}


def layout(num_decisions: int = 8, num_rows: int = 8) -> Layout:
    """One column that can be recognised."""
    return Layout.build(
        {"lengths": ("int32", (num_rows,)), "reward": ("float32", (num_decisions, num_rows))},
        num_decisions=num_decisions, num_rows=num_rows, num_finals=4,
    )  # fmt: skip


def ticket_request(
    slice: str = "s0", *, table: str = "main", rows: int = 8, decisions: int = 8
) -> TicketRequest:
    return TicketRequest(table, slice, rows, decisions, layout(decisions, rows).to_data())


def open_table(
    settings: dict[str, Any], version: tuple[int, int] = (1, 0), applied: int = 0, outrun: bool = False
) -> OpenTable:
    return OpenTable("main", settings, list(version), applied, outrun)


def write_chunk(
    folder: SlabFolder, ticket: Ticket, shape: Layout, value: float, version: tuple[int, int],
    *, lengths: list[int] | None = None,
) -> Commit:  # fmt: skip
    """Fill the ticket's cell with ``value`` and make the commit for it."""
    buffer = folder.open(ticket.slab, ticket.slab_bytes)
    views = shape.views(buffer, ticket.offset)
    filled = lengths or [ticket.num_decisions] * shape.num_rows
    views["lengths"][:] = filled
    views["reward"][:] = value
    content = memoryview(buffer)[ticket.offset + 64 : ticket.offset + shape.cell_bytes]
    return Commit(
        ticket.ticket, np.array(filled, np.int32), 0, zlib.crc32(content), list(version), list(version)
    )


def read_rewards(folder: SlabFolder, chunk: dict[str, Any]) -> set[float]:
    """The rewards of a chunk of a batch; checks its generation."""
    shape = Layout.from_data(chunk["layout"])
    buffer = folder.open(chunk["slab"], chunk["slab_bytes"])
    generation = int(np.frombuffer(buffer, np.uint64, 1, chunk["offset"])[0])
    assert generation == chunk["generation"]
    return set(shape.views(buffer, chunk["offset"])["reward"].ravel().tolist())


class Turns:
    """One client over a local link; `ask` turns the other side until the answer is there."""

    def __init__(self, link: Link, turn: Any) -> None:
        self.link, self.turn = link, turn

    def ask(self, message: Message, *, id: int = 0) -> Any:
        """The answer, or None if there is none yet."""
        self.last = self.link.send(message, id=id)
        return self.answer(self.last)

    def answer(self, request: int) -> Any:
        """The answer to an earlier request, if it has come."""
        self.turn()
        found = None
        while (envelope := self.link.recv()) is not None:
            if envelope.re == request:
                found = envelope.message
        return found


def ask(link: Link, message: Message, timeout_s: float = 5.0) -> Any:
    """Over a real socket."""
    return wait_reply(link, link.send(message), timeout_s)
