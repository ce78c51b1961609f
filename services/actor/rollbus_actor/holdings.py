"""The slices that an actor holds, and what it says to their hubs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from rollbus_actor.arrivals import check_attached
from rollbus_actor.session import Session, to_carry
from rollbus_actor.shared import SharedMemory
from rollbus_policies.base import Act as Decided
from rollbus_policies.base import PolicySpec
from rollbus_wire.errors import FaultReceived, PeerLost, SpecError, WireError
from rollbus_wire.link import Link
from rollbus_wire.messages import (
    Act,
    Attach,
    Attached,
    Detach,
    Detached,
    Fault,
    Message,
    Released,
    Tick,
    Waiting,
)
from rollbus_wire.polling import Poller, drain
from rollbus_wire.spec import EnvSpec

#: An `attach` without an answer is repeated after this long.
ATTACH_REPEAT_S = 2.0
#: Without a registry a slice that was refused or taken is asked for again after this long.
RETAKE_S = 0.05
#: A hub from which nothing came for this long is asked for news; each time twice as long, up to the second.
#: An environment may need longer for a step: then the hub has nothing to say.
FIRST_ASK_S, LAST_ASK_S = 1.0, 8.0
#: A slice that shall be given up waits this long for its running step.
RELEASE_WAIT_S = 1.0


class Owner(Protocol):
    """The actor, as its holdings see it."""

    name: str
    stats: Any

    def ticked(self, session: Session) -> None: ...

    def forget(self, session: Session) -> None: ...

    def tell(self, message: Message) -> None: ...


class Holdings:
    """Sessions by slice, links by endpoint."""

    def __init__(
        self, owner: Owner, connect: Callable[[str], Link], policy: PolicySpec, *, record: bool,
        alone: bool, memory: SharedMemory, clock: Callable[[], float],
    ) -> None:  # fmt: skip
        """``alone``: no registry would give a slice back that a hub refused or took, so it is asked for
        again."""
        self._alone = alone
        self._owner, self._connect, self._policy, self._clock = owner, connect, policy, clock
        self._record, self._memory, self._chunked = record, memory, policy.chunk > 1
        self.sessions: dict[str, Session] = {}
        self._links: dict[str, Link] = {}
        self._poller: Poller | None = None
        self._accounted = clock()
        self.counts: Counter[str] = Counter(
            stale_ticks=0, repeated_ticks=0, hubs_lost=0, slices_refused=0, bad_messages=0
        )

    # --- taking and giving up ----------------------------------------------------------------

    def start(self, poller: Poller) -> None:
        """Watch the hubs' links with ``poller``."""
        self._poller = poller
        for link in self._links.values():
            poller.add(link)

    def take(self, slice: str, endpoint: str, assignment: Sequence[int]) -> None:
        """Ask the hub at ``endpoint`` for ``slice``. The same assignment again changes nothing."""
        found = self.sessions.get(slice)
        if found is not None:
            if found.endpoint == endpoint and found.assignment == list(assignment):
                return
            self._end(found, "assigned anew", tell=False)
        try:
            session = self._begin(slice, endpoint, assignment)
        except WireError as error:
            self.counts["slices_refused"] += 1
            self._owner.tell(Released(slice, list(assignment), str(error)))
            return
        self._attach(session)

    def release(self, session: Session, reason: str) -> None:
        """Give the slice up at its next tick, which is now if its rows wait."""
        if session.release_by is None:
            session.release_by, session.release_reason = self._clock() + RELEASE_WAIT_S, reason
        if session.state in ("attach", "ready", "ticket"):
            self.give_up(session)

    def give_up(self, session: Session) -> None:
        """Commit what there is, detach, and tell the registry that the slice is free."""
        if session.held:
            self._send(session, Detach(session.slice, session.fence))
        self._end(session, session.release_reason)

    def close(self, reason: str) -> None:
        """Give everything up at once and close the links."""
        for session in list(self.sessions.values()):
            session.release_reason = reason
            self.give_up(session)
        for link in self._links.values():
            if self._poller is not None:
                self._poller.remove(link)
            link.close()
        self._links = {}
        self._memory.close()

    def answer(self, session: Session, act: Decided) -> bool:
        """Send the decision for the session's tick; False if the hub is gone."""
        tick = session.tick
        assert tick is not None
        carry = None if act.state is None else to_carry(act.state)
        message = Act(
            session.slice, session.fence, tick.tick, tick.rows, act.env_action, carry, self._chunked
        )
        if not self._send(session, message):
            return False
        if session.link.remote:
            # It is on its way; an engine may use its arrays again.
            message.action = act.env_action.copy()
            session.last_act = message
            self._await_news(session, FIRST_ASK_S)
        return True

    # --- hearing from hubs -------------------------------------------------------------------

    def poll(self, now: float) -> bool:
        """Handle what came and what is overdue; whether anything was done."""
        busy = False
        for link in list(self._links.values()):
            awaited = sum(s.link is link and s.state in ("attach", "tick") for s in self.sessions.values())
            for envelope in drain(link, max(1, awaited)):
                busy = True
                self._heard(link, envelope.message, envelope.re)
            if awaited:
                link.keep_alive()
        for session in list(self.sessions.values()):
            if session.release_by is not None and now >= session.release_by:
                busy = True
                self.give_up(session)
            elif session.state == "attach" and now >= session.attach_due:
                self._attach(session)
            elif session.state == "tick" and now >= session.ask_due:
                self._await_news(session, min(LAST_ASK_S, 2 * session.ask_wait_s))
                self._send(session, Waiting(session.slice, session.fence, session.last_tick))
        return busy

    def _await_news(self, session: Session, wait_s: float) -> None:
        session.ask_wait_s, session.ask_due = wait_s, self._clock() + wait_s

    def _heard(self, link: Link, message: Message, re: int) -> None:
        if isinstance(message, Tick):
            session = self._of(link, message.slice, message.fence)
            if session is not None and message.tick <= session.last_tick:
                self._repeated(session, message)
            elif session is not None and self._find(session, message) and self._is_sound(session, message):
                session.take_tick(message)
                self._owner.ticked(session)
        elif isinstance(message, Attached):
            self._attached(link, message, re)
        elif isinstance(message, Detached):
            session = self._of(link, message.slice, message.fence)
            if session is not None:
                self._taken_away(session, message.reason or "detached by the hub")
        elif isinstance(message, Fault):
            self._fault(link, message, re)

    def _repeated(self, session: Session, tick: Tick) -> None:
        """A tick that came before: its answer was lost, or is still to come."""
        self.counts["repeated_ticks"] += 1
        if session.state == "tick" and tick.tick == session.last_tick and session.last_act is not None:
            self._send(session, session.last_act)

    def _of(self, link: Link, slice: str, fence: int) -> Session | None:
        """The session that the message is for; older fences are counted and ignored."""
        session = self.sessions.get(slice)
        if session is None or not session.held or session.fence != fence or session.link is not link:
            self.counts["stale_ticks"] += 1
            return None
        return session

    def _attached(self, link: Link, message: Attached, re: int) -> None:
        session = self.sessions.get(message.slice)
        if session is None or session.link is not link or session.held or session.attach_id != re:
            # An answer to nobody: the hub must not wait for this fence.
            self.counts["stale_ticks"] += 1
            if session is None:
                self._tell_hub(link, Detach(message.slice, message.fence))
            return
        try:
            spec = check_attached(message) if link.remote else EnvSpec.from_data(message.spec)
        except SpecError as error:
            self._distrust(session, message.fence, f"attached: {error}")
            return
        session.attached(message, spec, self._policy, self._policy.frame_stack, self._record)
        if link.remote:
            self._await_news(session, FIRST_ASK_S)
        if message.slab:
            self._share(session, message)

    def _share(self, session: Session, message: Attached) -> None:
        assert session.spec is not None
        try:
            session.shared = self._memory.open(
                message.slab, message.slab_bytes, session.spec, session.num_rows
            )
        except PeerLost as error:
            self._tell_hub(session.link, Detach(session.slice, session.fence))
            self._taken_away(session, str(error))

    def _find(self, session: Session, tick: Tick) -> bool:
        """Have the tick's observations; False: they are not there any more, so the fence is an old one."""
        if tick.place < 0 or (session.shared is not None and session.shared.take(tick)):
            return True
        self.counts["stale_ticks"] += 1
        return False

    def _is_sound(self, session: Session, tick: Tick) -> bool:
        """Whether a tick from another process is what its slice's spec says; else the slice is given up."""
        if session.link.remote:
            assert session.check is not None
            problem = session.check(tick) if session.state == "tick" else "the one before is not answered"
            if problem:
                self._distrust(session, tick.fence, f"tick: {problem}")
                return False
        return True

    def _distrust(self, session: Session, fence: int, reason: str) -> None:
        self.counts["bad_messages"] += 1
        self._tell_hub(session.link, Detach(session.slice, fence))
        self._taken_away(session, f"the hub sent what cannot be: {reason}")

    def _fault(self, link: Link, message: Fault, re: int) -> None:
        for session in list(self.sessions.values()):
            if session.link is link and session.state == "attach" and session.attach_id == re:
                self.counts["slices_refused"] += 1
                self._taken_away(session, f"{message.code}: {message.text}")
                return
        if message.code == "spec":
            # The policy does what the environment forbids: it would do so again.
            raise FaultReceived(message.code, f"a hub refused an action: {message.text}")
        self.counts["faults"] += 1

    # --- details -------------------------------------------------------------------------------

    def _begin(self, slice: str, endpoint: str, assignment: Sequence[int]) -> Session:
        session = Session(slice, endpoint, self._link(endpoint), assignment)
        self.sessions[slice] = session
        return session

    def _taken_away(self, session: Session, reason: str) -> None:
        self._end(session, reason)
        if self._alone and session.release_by is None:
            again = self._begin(session.slice, session.endpoint, session.assignment)
            again.attach_due = self._clock() + RETAKE_S

    def _attach(self, session: Session) -> None:
        session.attach_due = self._clock() + ATTACH_REPEAT_S
        memory = self._memory.nonce() if session.link.remote else ""
        message = Attach(session.slice, session.assignment, self._owner.name, memory)
        try:
            session.attach_id = session.link.send(message, id=session.attach_id)
        except PeerLost:
            pass

    def _send(self, session: Session, message: Message) -> bool:
        try:
            session.link.send(message)
        except PeerLost as error:
            self.counts["hubs_lost"] += 1
            self._end(session, f"hub lost: {error}")
            return False
        return True

    def _tell_hub(self, link: Link, message: Message) -> None:
        try:
            link.send(message)
        except PeerLost:
            pass

    def _end(self, session: Session, reason: str, *, tell: bool = True) -> None:
        if self.sessions.get(session.slice) is not session:
            return
        del self.sessions[session.slice]
        self._owner.forget(session)
        session.closed = True
        if tell:
            self._owner.tell(Released(session.slice, session.assignment, reason))

    def _link(self, endpoint: str) -> Link:
        link = self._links.get(endpoint)
        if link is None:
            link = self._links[endpoint] = self._connect(endpoint)
            if self._poller is not None:
                self._poller.add(link)
        return link

    def account(self, now: float) -> float:
        """Add up how long slices were held; returns how long they have been waiting for tickets."""
        since, self._accounted = self._accounted, now
        self._owner.stats.held_s += (now - since) * sum(s.held for s in self.sessions.values())
        return sum(now - s.waits_since for s in self.sessions.values() if s.state == "ticket")
