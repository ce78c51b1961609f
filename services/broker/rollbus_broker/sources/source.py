"""The service that reads data sets into tables: tickets, cells and commits, as an actor's.

Every table is filled once, in one order. What a table holds already is not read again, so a source that
starts anew goes on where the last one ended. It ends when all is in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollbus_broker.sources.cells import Segment, data_layout, segments
from rollbus_core.columns import HEADER_BYTES, Layout
from rollbus_core.datasets.features import without_expert
from rollbus_core.datasets.parts import Part
from rollbus_core.feed import Feed
from rollbus_core.member import Member
from rollbus_core.requests import Requests
from rollbus_core.service import Service
from rollbus_core.slabs import SlabFolder
from rollbus_core.weights.digests import BEST, digest
from rollbus_wire.errors import ConfigError
from rollbus_wire.link import Link
from rollbus_wire.messages import (
    Commit,
    Committed,
    Fault,
    ListMembers,
    Members,
    Message,
    Ticket,
    TicketRequest,
)
from rollbus_wire.polling import Poller
from rollbus_wire.spec import EnvSpec

#: Reading one chunk may last this long.
READ_S = 60.0
#: An episode's number in a table: number of its data set, and its index there.
DATASET_SHIFT = 40


@dataclass
class _Table:
    """One table to fill."""

    name: str
    feed: Feed
    layout: Layout
    parts: list[Part]

    @property
    def num_steps(self) -> int:
        return sum(part.num_steps for part in self.parts)

    @property
    def num_bytes(self) -> int:
        """What its cells take."""
        size = self.feed.num_decisions
        cells = sum(-(-episode.length // size) for part in self.parts for episode in part.episodes)
        return cells * self.layout.cell_bytes


class Source(Service):
    """Fills ``tables`` (table -> parts) for environment ``spec``. Raises `ConfigError` for misfits."""

    role = "source"

    def __init__(
        self, name: str, spec: EnvSpec, tables: Mapping[str, list[Part]], feeds: Mapping[str, Feed], *,
        frame_stack: int, chunk: int = 1, registry: Link, store: Link, slabs: SlabFolder | None, log: Any,
    ) -> None:  # fmt: skip
        """``chunk``: actions of one decision of the policy. ``slabs`` None: cells travel in their commits."""
        super().__init__(name)
        self.spec, self.slabs, self._log = without_expert(spec), slabs, log
        self.registry, self.store = registry, store
        self._requests = Requests(store)
        self.member: Member = Member(registry, self.role, name, stats=self.stats, state=lambda: self.state)
        self._todo = [
            _Table(
                table,
                feed := feeds[table],
                self._layout(feed, found, frame_stack, chunk),
                found,
            )
            for table, found in tables.items()
        ]
        for table in self._todo:
            _check(table, self.spec)
        self._chunks: Iterator[Segment] | None = None
        self._segment: Segment | None = None
        self._asked_members = False
        self.num_steps = 0

    def _layout(self, feed: Feed, parts: list[Part], frame_stack: int, chunk: int) -> Layout:
        labelled = any(part.source.labels for part in parts)
        return data_layout(
            self.spec, feed.num_decisions, frame_stack, chunk, returns=feed.return_discount is not None,
            labelled=labelled,
        )  # fmt: skip

    def start(self, poller: Poller) -> None:
        super().start(poller)
        poller.add(self.registry)
        poller.add(self.store)

    def poll(self) -> bool:
        busy = False
        for envelope in self.member.poll():
            busy = True
            if isinstance(envelope.message, Members) and self.state == "start":
                self._begin(envelope.message)
        busy |= self._requests.poll()[0]
        if self.state == "start" and self.member.registered is not None and not self._asked_members:
            self._asked_members = True
            self.member.send(ListMembers())
        if self.state == "run" and self._segment is None:
            self._next()
            busy = True
        return busy

    def stop(self) -> None:
        self.member.leave("finished" if self.state == "stopped" else "failed")
        for link in (self.registry, self.store):
            link.close()

    def stats(self) -> dict[str, Any]:
        """Numbers of the heartbeat."""
        return {"steps": self.num_steps, "tables": [table.name for table in self._todo]}

    # --- what is there already -------------------------------------------------------------------

    def _begin(self, members: Members) -> None:
        """The registry's answer: how far each table is."""
        there = {row["table"]: int(row["steps"]) for row in members.tables}
        self._there = {table.name: there.get(table.name, 0) for table in self._todo}
        self.state = "run"
        for name, steps in self._there.items():
            if steps:
                self._log.info("goes on", table=name, steps=steps)

    def _read(self, table: _Table, skip: int) -> Iterator[Segment]:
        """All chunks of ``table`` behind its first ``skip`` steps."""
        before = 0
        for part in table.parts:
            left = list(part.episodes)
            while left and before + left[0].length <= skip:
                before += left.pop(0).length
            if not left:
                continue
            wanted = [episode.index for episode in left]
            for index, episode in part.read(self.spec, wanted):
                number = part.number << DATASET_SHIFT | index
                feed = table.feed
                for segment in segments(episode, number, feed.num_decisions, feed.return_discount):
                    if before >= skip:
                        yield segment
                    before += segment.length

    # --- one chunk after the other ---------------------------------------------------------------

    def _next(self) -> None:
        """Read the next chunk and ask for its ticket."""
        if not self._todo:
            self.state = "stopped"
            return
        table = self._todo[0]
        self.member.stage(f"read {table.name}", READ_S)
        if self._chunks is None:
            self._chunks = self._read(table, self._there[table.name])
        self._segment = next(self._chunks, None)
        if self._segment is None:
            self._log.info("filled", table=table.name, steps=table.num_steps)
            self._chunks = None
            self._todo.pop(0)
            return
        self._requests.ask(
            TicketRequest(table.name, self.name, 1, table.feed.num_decisions, table.layout.to_data()),
            lambda reply: self._granted(table, reply),
        )

    def _granted(self, table: _Table, reply: Message) -> None:
        if not isinstance(reply, Ticket):
            raise ConfigError(f"table {table.name!r}: {_text(reply)}")
        segment, layout = self._segment, table.layout
        assert segment is not None
        buffer, offset = self._cell(reply, layout.cell_bytes)
        segment.write(layout, buffer, offset)
        cell = memoryview(buffer).cast("B")[offset : offset + layout.cell_bytes]
        commit = Commit(
            ticket=reply.ticket, lengths=_lengths(segment), num_finals=segment.num_finals,
            digest=digest(cell[HEADER_BYTES:]), digest_kind=BEST, oldest=[0, 0], newest=[0, 0],
            order=[segment.number, segment.begin],
            cell=np.frombuffer(cell, np.uint8) if self.slabs is None else None,
        )  # fmt: skip
        self._requests.ask(commit, lambda answer: self._committed(segment, answer))

    def _committed(self, segment: Segment, reply: Message) -> None:
        if not isinstance(reply, Committed) or reply.sequence < 0:
            # The order of a table is kept: it goes on behind what the table has.
            self._log.warning("a chunk was not taken", answer=_text(reply))
            self.state, self._asked_members = "start", False
            self._segment = self._chunks = None
            return
        self.num_steps += segment.length
        self._segment = None

    def _cell(self, ticket: Ticket, num_bytes: int) -> tuple[Any, int]:
        if self.slabs is None:
            return np.zeros(num_bytes, np.uint8), 0
        return self.slabs.open(ticket.slab, ticket.slab_bytes), ticket.offset


def _check(table: _Table, spec: EnvSpec) -> None:
    for part in table.parts:
        part.fitted(spec)
    limit = table.feed.table.max_bytes
    if table.num_bytes > limit:
        raise ConfigError(
            f"the data of table {table.name!r} takes {table.num_bytes >> 20} MiB, the table may have "
            f"{limit >> 20} MiB; raise algorithm.max_bytes, or use fewer episodes (data.sources: episodes)"
        )


def _lengths(segment: Segment) -> np.ndarray:
    return np.array([segment.length], np.int32)


def _text(reply: Message) -> str:
    if isinstance(reply, Fault):
        return f"{reply.code}: {reply.text}"
    return getattr(reply, "reason", "") or reply.kind
