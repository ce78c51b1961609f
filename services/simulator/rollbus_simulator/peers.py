"""All peers of a hub: they dial in, are asked, answer, and get lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from rollbus_core.rotations import Conventions
from rollbus_simulator.counters import Counters
from rollbus_simulator.failures import ADVICE, FailureLog
from rollbus_simulator.sessions import Request, Session, spec_difference
from rollbus_wire.errors import PeerLost, RollbusError, SpecError, short
from rollbus_wire.limits import MAX_PEERS, MAX_ROWS
from rollbus_wire.link import Envelope, Link
from rollbus_wire.messages import (
    PROTOCOL,
    Fault,
    Goodbye,
    Hello,
    Message,
    Outcome,
    Ping,
    Pong,
    Welcome,
    fields_hash,
)
from rollbus_wire.places import own_traceback
from rollbus_wire.polling import drain
from rollbus_wire.spec import EnvSpec

#: What `Welcome` promises; a peer that hears nothing for three of these dials in again.
HEARTBEAT_S = 5.0
#: How often a peer is pinged. A peer that is gone is noticed by this.
PING_S = 1.0
#: More peers, or slices, than this are looked at so often, not in every turn.
MANY, LOOK_S = 64, 0.02
#: An environment that fails this often without a success between is given up.
MAX_FAILURES = 5


class Events(Protocol):
    """What the hub does about peers."""

    def peer_came(self, session: Session) -> None:
        """It has free rows."""
        ...

    def peer_lost(self, session: Session, reason: str) -> None:
        """Its rows are gone."""
        ...


class Peers:
    """Sessions by link and address. All peers of a hub have equal specs."""

    def __init__(
        self, events: Events, counters: Counters, rotations: Mapping[str, str], *, timeout_s: float, log: Any
    ) -> None:
        self._events, self._counters, self._log, self._rotations = events, counters, log, rotations
        self._timeout_s = timeout_s
        self._links: list[tuple[Link, Callable[[Message], Message] | None]] = []
        self._sessions: dict[tuple[int, bytes], Session] = {}
        self._next_index, self._look_at = 0, 0.0
        #: Sessions of peers that live in this process.
        self._local: list[Session] = []
        #: What the first one's spec is, and how it is seen.
        self.conventions: Conventions | None = None
        self._failures = FailureLog(log)
        #: The last failure of an environment, as text.
        self.last_failure = ""
        #: The last one that was logged; it does not change while the same comes again and again.
        self.failure = ""

    def add(self, link: Link, serve: Callable[[Message], Message] | None = None) -> None:
        """Listen on ``link``; ``serve`` answers in the peer's place where it lives in this process."""
        self._links.append((link, serve))

    @property
    def sessions(self) -> list[Session]:
        """All sessions that are open."""
        return list(self._sessions.values())

    def poll(self) -> bool:
        """Take in what arrived, and end sessions that cannot go on."""
        busy = False
        for link, serve in list(self._links):
            busy |= self._drain(link, serve)
        busy |= self.serve()
        now = time.monotonic()
        if len(self._sessions) > MANY and not self._local and now < self._look_at:
            return busy
        self._look_at = now + LOOK_S
        for session in self.sessions:
            if session.serve is None:
                self._watch(session, now)
            if session.broken:
                self._lose(session, session.broken)
                busy = True
        return busy

    def probe(self) -> None:
        """Ping every peer at the next turn: one of them may be gone."""
        for session in self._sessions.values():
            session.pinged = 0.0

    def close(self, reason: str, *, again: bool = False) -> None:
        """Say goodbye to all; ``again``: they shall wait for the next hub."""
        for session in self._sessions.values():
            session.tell(Goodbye(reason=reason, again=again))
        self._sessions.clear()

    def serve(self) -> bool:
        """Ask the peers in this process until nothing is asked of them any more; no message is sent."""
        asked = [session for session in self._local if session.asked]
        for session in asked:
            self._serve(session)
        return bool(asked)

    def _serve(self, session: Session) -> None:
        serve = session.serve
        assert serve is not None
        while session.asked:
            message, request = session.asked.popleft()
            reply = serve(message)
            if session.broken:
                self._counters.late_outcomes += 1
            else:
                self._answered(session, request, reply)

    def _drain(self, link: Link, serve: Callable[[Message], Message] | None) -> bool:
        busy = False
        for envelope in drain(link):
            busy = True
            session = self._sessions.get((id(link), envelope.peer))
            if isinstance(envelope.message, Hello):
                self._hello(link, envelope, serve)
            elif session is None:
                self._unknown(link, envelope)
            else:
                self._heard(session, envelope)
        return busy

    def _heard(self, session: Session, envelope: Envelope) -> None:
        message = envelope.message
        session.heard = time.monotonic()
        if isinstance(message, Goodbye):
            session.broken = f"the peer said goodbye: {message.reason}"
        elif isinstance(message, Ping):
            session.tell(Pong(), re=envelope.id)
        elif envelope.re and not isinstance(message, Pong):
            request = session.open.pop(envelope.re, None)
            if request is None or session.broken:
                self._counters.late_outcomes += 1
            else:
                self._answered(session, request, message)
        elif isinstance(message, Fault):
            text = message.text
            self._failures.add(message.code, "peer fault", peer=session.name, code=message.code, text=text)

    def _answered(self, session: Session, request: Request, message: Message) -> None:
        if isinstance(message, Outcome):
            self._outcome(session, request, message)
            return
        text = getattr(message, "text", f"answered {message.kind}")
        text = f"{text} ({request.asker.where(request)}); {ADVICE}"
        text = self._tell_failure(session, request, text, str(getattr(message, "traceback", "")))
        self._count_failure(session, text)
        request.asker.failed(request)

    def _outcome(self, session: Session, request: Request, message: Outcome) -> None:
        try:
            bad = request.asker.outcome(request, message)
        except SpecError as error:
            session.tell(Fault(code=error.code, text=str(error)))
            text = f"outcome of a {request.kind} refused: {error} ({request.asker.where(request)}); {ADVICE}"
            session.broken = self._tell_failure(session, request, text)
            self._counters.failed_in_a_row += len(request.places)
            return
        if bad is not None:
            text = self._tell_failure(session, request, bad.text, bad.traceback)
            if bad.whole:
                self._count_failure(session, text)
        if request.kind == "step" and (bad is None or not bad.whole):
            session.failures = 0

    def _tell_failure(self, session: Session, request: Request, text: str, traceback: str = "") -> str:
        """Log it and keep it for the heartbeat; ``text`` with the frames that are the environment's."""
        whole = "\n".join(filter(None, [text, own_traceback(traceback)]))
        self.last_failure = f"{session.name}: {whole}"
        if self._failures.add(text, peer=session.name, request=request.kind, text=text, traceback=traceback):
            self.failure = self.last_failure
        return whole

    def _count_failure(self, session: Session, text: str) -> None:
        session.failures += 1
        if session.failures >= MAX_FAILURES:
            session.given_up = True
            session.broken = f"{session.failures} failures in a row, the last one: {text}"

    def _hello(self, link: Link, envelope: Envelope, serve: Callable[[Message], Message] | None) -> None:
        hello, key = envelope.message, (id(link), envelope.peer)
        assert isinstance(hello, Hello)
        refused = self._refusal(hello)
        if refused is not None:
            if serve is not None:
                raise SpecError(f"the environment of {hello.name}: {refused.text}")
            self._failures.add(refused.text, "peer refused", peer=hello.name, text=refused.text)
            self._reply(link, envelope, refused)
            return
        old = self._sessions.get(key)
        if old is not None:
            self._lose(old, "the peer dialled in anew")
        self._next_index += 1
        index = self._next_index
        session = Session(
            index, link, envelope.peer, hello.name or f"peer {index}", hello.num_rows,
            self._timeout_s, serve, hello.row_tasks,
        )  # fmt: skip
        self._sessions[key] = session
        if serve is not None:
            # It says nothing more by itself.
            self._local.append(session)
            self._links.remove((link, serve))
        session.tell(
            Welcome(
                peer=index,
                protocol=list(PROTOCOL),
                fields_hash=fields_hash(),
                heartbeat_s=HEARTBEAT_S,
            ),
            re=envelope.id,
        )
        if serve is None:
            self._log.info("peer came", peer=session.name, rows=hello.num_rows)
        self._events.peer_came(session)

    def _refusal(self, hello: Hello) -> Fault | None:
        """Why a peer is not taken, or None; the first one's spec is the hub's."""
        if not hello.protocol or hello.protocol[0] != PROTOCOL[0]:
            return Fault(
                code="version",
                text="the peer speaks protocol %s, the hub %s; install the same major version"
                % (".".join(map(str, hello.protocol[:2])), ".".join(map(str, PROTOCOL))),
            )
        try:
            spec = EnvSpec.from_data(hello.spec)
        except SpecError as error:
            return Fault(code=error.code, text=str(error))
        if not 1 <= hello.num_rows <= MAX_ROWS:
            return Fault(code="spec", text=f"the peer offers {hello.num_rows} rows; 1 to {MAX_ROWS}")
        wrong = _wrong_tasks(hello, spec)
        if wrong:
            return Fault(code="spec", text=wrong)
        if len(self._sessions) >= MAX_PEERS:
            return Fault(code="limit", text=f"{MAX_PEERS} peers are here already; use another hub")
        if self.conventions is None:
            try:
                self.conventions = Conventions(spec, self._rotations)
            except RollbusError as error:
                return Fault(code=error.code, text=str(error))
        difference = spec_difference(self.conventions.own, spec)
        if difference:
            return Fault(code="spec", text=f"the peers of a hub must have equal specs: {difference}")
        return None

    def _unknown(self, link: Link, envelope: Envelope) -> None:
        self._counters.late_outcomes += isinstance(envelope.message, Outcome)
        if not isinstance(envelope.message, Fault | Goodbye):
            self._reply(
                link, envelope, Fault(code="unknown-peer", text="the hub has no session with you; say hello")
            )

    def _reply(self, link: Link, envelope: Envelope, message: Message) -> None:
        try:
            link.send(message, to=envelope.peer, re=envelope.id)
        except PeerLost:
            pass

    def _watch(self, session: Session, now: float) -> None:
        if session.overdue(now):
            session.broken = f"no outcome within {session.timeout_s:g} s (env.step_timeout_s)"
            session.hangs = True
        elif not session.open and now - session.heard > 3 * HEARTBEAT_S:
            session.broken = f"silent for {now - session.heard:.1f} s"
            session.hangs = True
        elif now - session.pinged > PING_S:
            session.pinged = now
            session.tell(Ping())

    def _lose(self, session: Session, reason: str) -> None:
        """End the session; its rows are the hub's to interrupt."""
        self._sessions.pop((id(session.link), session.address), None)
        session.broken = ""
        session.tell(Goodbye(reason=reason))
        session.broken = reason
        self._counters.peers_lost += 1
        self._log.warning("peer lost", peer=session.name, reason=reason)
        self._events.peer_lost(session, reason)


def _wrong_tasks(hello: Hello, spec: EnvSpec) -> str:
    """Why the tasks that the peer's rows run do not fit its spec; "": they do."""
    rows, num = hello.row_tasks, len(spec.tasks)
    if not num:
        return "" if rows is None else "row_tasks without tasks in the spec"
    if rows is None or rows.shape != (hello.num_rows,) or rows.dtype.kind not in "iu":
        came = "nothing" if rows is None else f"{rows.dtype} {list(rows.shape)}"
        return f"row_tasks is {came}; with tasks in the spec it is int32 [{hello.num_rows}]"
    if rows.min() < 0 or rows.max() >= num:
        return f"row_tasks is {short(rows)}; the spec has {num} tasks"
    return ""
