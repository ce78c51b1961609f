"""Chunks of the recorded slices: tickets, cells, commits. Never blocks; the store answers later."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rollbus_actor.chunks import ChunkWriter, Decision, chunk_layout
from rollbus_actor.sent_log import SentLog
from rollbus_actor.session import Session
from rollbus_core.columns import SOURCES
from rollbus_core.feed import Feed
from rollbus_core.requests import Requests
from rollbus_core.slabs import SlabFolder
from rollbus_core.version import Version
from rollbus_policies.base import PolicySpec
from rollbus_wire.errors import PeerLost
from rollbus_wire.messages import Cancel, Commit, Committed, Fault, Message, Ticket, TicketRequest

#: A refused ticket is asked for again after this long.
RETRY_S = 0.5
#: How the two modes of a ticket stand in the ``source`` column.
_SOURCE = {"sample": SOURCES.index("policy"), "random": SOURCES.index("random")}

#: The critic's values float32 [B] of observations [B, ...] and recurrent states [B, S].
Values = Callable[[Mapping[str, np.ndarray], np.ndarray | None], np.ndarray]


class Recorder:
    """Keeps every recorded slice in tickets and writes its chunks."""

    def __init__(
        self, requests: Requests, slabs: SlabFolder | None, feed: Feed, policy: PolicySpec,
        frame_stack: int, table: str, values: Values, on_ticket: Callable[[Session], Any],
        audit: SentLog | None = None,
    ) -> None:  # fmt: skip
        """``slabs`` None: cells travel in their commits. ``on_ticket``: a session may go on."""
        self.requests, self.slabs, self.feed, self.policy = requests, slabs, feed, policy
        self.frame_stack, self.table = frame_stack, table
        self._values, self._on_ticket, self._audit = values, on_ticket, audit
        self._records_value = "value" in feed.extras
        #: Sessions whose ticket was refused, and when to ask again.
        self._retries: dict[Session, float] = {}
        #: Commits whose answer is awaited.
        self.open_commits = 0
        self.num_chunks = 0
        self.dropped: Counter[str] = Counter()

    def poll(self, now: float) -> bool:
        """Take the store's answers; whether there were any."""
        busy, _ = self.requests.poll()
        if self._audit is not None:
            self._audit.flush()
        for session in [s for s, due in self._retries.items() if now >= due]:
            del self._retries[session]
            self.ask(session)
        return busy

    # --- tickets -----------------------------------------------------------------------------

    def ask(self, session: Session) -> None:
        """Ask for a ticket unless one is there or on its way."""
        if session.ticket is not None or session.request or session in self._retries:
            return
        layout = session.layout
        assert layout is not None
        message = TicketRequest(
            table=self.table, slice=session.slice, num_rows=session.num_rows,
            num_decisions=self.feed.num_decisions, layout=layout.to_data(),
        )  # fmt: skip
        try:
            session.request = self.requests.ask(message, lambda reply: self._answered(session, layout, reply))
        except PeerLost:
            self._retries[session] = time.monotonic() + RETRY_S

    def _answered(self, session: Session, layout: Any, reply: Message) -> None:
        session.request = 0
        if session.closed:
            if isinstance(reply, Ticket):
                self._cancel([reply.ticket])
        elif not isinstance(reply, Ticket):
            self.dropped["ticket_refused"] += 1
            self._retries[session] = time.monotonic() + RETRY_S
        elif session.layout is not layout:
            self._cancel([reply.ticket])
            self.ask(session)
        else:
            session.ticket = reply
            self._on_ticket(session)

    def leave(self, session: Session) -> None:
        """The session ends: what it asked for goes back, also a ticket that is still on its way."""
        session.closed = True
        self._retries.pop(session, None)
        if session.ticket is not None:
            self._cancel([session.ticket.ticket])
            session.ticket = None
        if session.parked is not None:
            self.dropped["unrecorded"] += session.parked.rows.size
            session.parked = None

    def _cancel(self, tickets: list[int]) -> None:
        try:
            self.requests.ask(Cancel(tickets), lambda _: None)
        except PeerLost:
            pass

    # --- chunks ------------------------------------------------------------------------------

    def open(self, session: Session, applied: Version) -> bool:
        """Begin a chunk if there is a ticket that ``applied`` may use; asks for one otherwise."""
        self._fit_layout(session)
        ticket = session.ticket
        if ticket is None:
            self.ask(session)
            return False
        if Version.of(ticket.min_version) > applied:
            return False
        assert session.layout is not None
        session.ticket = None
        buffer, offset = self._cell(ticket, session.layout.cell_bytes)
        if buffer is None:
            self.dropped["slab_gone"] += 1
            self._cancel([ticket.ticket])
            self.ask(session)
            return False
        session.writer = ChunkWriter(session.layout, ticket, buffer, offset, self.feed.extras)
        session.finals = []
        if session.parked is not None:
            self.dropped["unrecorded"] += session.writer.adopt(session.parked)
            session.parked = None
        return True

    def _cell(self, ticket: Ticket, num_bytes: int) -> tuple[Any, int]:
        if self.slabs is None:
            return np.zeros(num_bytes, np.uint8), 0
        try:
            buffer = self.slabs.cell(ticket.slab, ticket.slab_bytes, ticket.offset, num_bytes)
            return buffer, ticket.offset
        except PeerLost:
            return None, 0

    def _fit_layout(self, session: Session) -> None:
        """The layout of the slice's chunks; a tick may show that decisions take more steps."""
        assert session.tick is not None and session.spec is not None
        length = max(session.tick.reward.shape[1], self.policy.execute)
        if session.layout is not None and not self.too_narrow(session):
            return
        session.chunk_length = length
        session.layout = chunk_layout(
            session.spec, self.policy, self.feed, num_rows=session.num_rows, chunk_length=length,
            frame_stack=self.frame_stack,
        )  # fmt: skip
        if session.ticket is not None:
            self._cancel([session.ticket.ticket])
            session.ticket = None

    def too_narrow(self, session: Session) -> bool:
        """Whether the tick tells of more environment steps per decision than the chunk has room for."""
        assert session.tick is not None and session.layout is not None
        return session.tick.reward.shape[1] > session.chunk_length

    def ends_before(self, session: Session) -> bool:
        """Whether the decisions on the session's tick belong into another chunk."""
        writer, tick = session.writer, session.tick
        assert writer is not None and tick is not None
        new_round = self.feed.group_size and session.whole and not tick.step.any() and writer.lengths.any()
        return bool(new_round) or writer.ends_before(tick.rows)

    def outcome(self, session: Session) -> None:
        """Book the outcomes in the session's tick."""
        writer, tick = session.writer, session.tick
        assert writer is not None and tick is not None
        taken = writer.outcome(tick, session.whole)
        if self._records_value and taken.size:
            session.finals.append(session.final_inputs(taken))

    def decide(self, session: Session, decision: Decision) -> None:
        """Record the decisions just made."""
        writer = session.writer
        assert writer is not None
        writer.decide(decision)
        if (writer.fills_next or self.feed.group_size) and session.release_by is None:
            # Asked for while the last step is simulated; which step is the last of a round nobody knows.
            self.ask(session)

    def source(self, session: Session) -> int:
        """The ``source`` column of decisions under the session's ticket."""
        return _SOURCE.get(session.writer.ticket.mode, 0) if session.writer is not None else 0

    def close(self, session: Session) -> None:
        """End the chunk at the session's tick, or without one at the last outcomes; commit it."""
        writer, tick = session.writer, session.tick if session.taken else None
        assert writer is not None
        session.writer, session.parked = None, writer.parked()
        if tick is None:
            writer.end(np.zeros(0, np.intp), {k: v[:0] for k, v in self._no_obs(session).items()}, _NO_STEP)
        else:
            writer.end(tick.rows, tick.obs, tick.step)
        if not writer.lengths.any():
            self._cancel([writer.ticket.ticket])
            return
        if self._records_value:
            self._close_values(session, writer, tick is not None)
        self._commit(session, writer)

    def discard(self, session: Session) -> None:
        """Give the chunk and its ticket back."""
        assert session.writer is not None
        self.dropped["unrecorded"] += int(session.writer.lengths.sum())
        self._cancel([session.writer.ticket.ticket])
        session.writer = session.parked = None

    def _no_obs(self, session: Session) -> dict[str, np.ndarray]:
        assert session.spec is not None
        return {k: np.zeros((0, *s.shape), s.dtype) for k, s in session.spec.observation.items()}

    def _close_values(self, session: Session, writer: ChunkWriter, with_tick: bool) -> None:
        """One pass of the critic over the last observations and the finals."""
        parts: list[tuple[Mapping[str, np.ndarray], np.ndarray | None]] = list(session.finals)
        rows = np.zeros(0, np.intp)
        if with_tick:
            assert session.tick is not None
            rows = session.tick.rows
            parts.insert(0, session.inputs())
        if not parts:
            return
        obs = {key: np.concatenate([part[key] for part, _ in parts]) for key in parts[0][0]}
        states = [state for _, state in parts if state is not None]
        values = self._values(obs, np.concatenate(states) if states else None)
        writer.set_values(rows, values[: rows.size], values[rows.size :])

    def _commit(self, session: Session, writer: ChunkWriter) -> None:
        commit = writer.commit(with_cell=self.slabs is None)
        if self._audit is not None:
            self._audit.sent(session.slice, commit.ticket, writer.record())

        def answered(reply: Message) -> None:
            self.open_commits -= 1
            sequence, reason = _outcome(reply)
            if self._audit is not None:
                self._audit.answered(commit.ticket, sequence, reason)
            if reason:
                self.dropped[reason] += 1
            else:
                self.num_chunks += 1

        self.open_commits += 1
        self._send_commit(commit, answered)

    def _send_commit(self, commit: Commit, answered: Callable[[Message], None]) -> None:
        try:
            self.requests.ask(commit, answered)
        except PeerLost:
            answered(Fault(code="peer-lost", text="the store cannot be reached"))


def _outcome(reply: Message) -> tuple[int, str]:
    """(sequence, "") of a chunk that the store took, else (-1, why not)."""
    if isinstance(reply, Committed) and reply.sequence >= 0:
        return reply.sequence, ""
    reason = reply.reason if isinstance(reply, Committed) else getattr(reply, "code", "fault")
    return -1, reason or "unknown"


_NO_STEP = np.zeros(0, np.int32)
