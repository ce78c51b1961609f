"""Requests over a link: each has a deadline, is repeated under its own id, and is answered once."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from rollbus_wire.errors import PeerLost
from rollbus_wire.limits import MAX_PEERS
from rollbus_wire.link import Envelope, Link
from rollbus_wire.messages import Message, Pong
from rollbus_wire.polling import drain

#: A request that may be answered much later, such as one for a ticket, is repeated this seldom in the end.
MAX_REPEAT_S = 5.0


@dataclass
class _Open:
    message: Message
    on_reply: Callable[[Message], Any]
    due: float
    wait_s: float


#: Replies of all senders together, and of each at least, that are remembered.
MAX_REPLIES, MIN_REPLIES = 1 << 16, 16


@dataclass
class _Asked:
    """A request that came. ``peer``: the connection over which it came last."""

    peer: bytes
    answer: Message | None = None


class Requests:
    """The asking side of a plane.

    A reply that nobody awaits is dropped and counted in ``late``; messages that are not replies
    are returned by `poll`.
    """

    def __init__(self, link: Link, repeat_s: float = 1.0) -> None:
        """``repeat_s``: time until a request is repeated; each time twice as long, up to `MAX_REPEAT_S`."""
        self.link, self.repeat_s = link, repeat_s
        self.late = 0
        self._redials = link.redials
        self._open: dict[int, _Open] = {}
        #: No request is due before this.
        self._due = math.inf

    def ask(self, message: Message, on_reply: Callable[[Message], Any]) -> int:
        """Send ``message``; ``on_reply`` gets its answer (which may be a `Fault`)."""
        request = self.link.send(message)
        due = time.monotonic() + self.repeat_s
        self._open[request] = _Open(message, on_reply, due, self.repeat_s)
        self._due = min(self._due, due)
        return request

    def forget(self, request: int) -> None:
        """The answer is not wanted any more."""
        self._open.pop(request, None)

    def __len__(self) -> int:
        return len(self._open)

    def poll(self) -> tuple[bool, list[Envelope]]:
        """Deliver replies and repeat what is overdue: (anything done, other messages)."""
        others, busy = [], False
        for envelope in drain(self.link):
            busy = True
            if isinstance(envelope.message, Pong):
                continue
            if not envelope.re:
                others.append(envelope)
                continue
            entry = self._open.pop(envelope.re, None)
            if entry is None:
                self.late += 1
            else:
                entry.on_reply(envelope.message)
        if self._open:
            self.link.keep_alive()
        if self.link.redials != self._redials:  # what was under way is lost
            self._redials = self.link.redials
            for entry in self._open.values():
                entry.due, entry.wait_s = 0.0, self.repeat_s
            self._due = 0.0
        if (now := time.monotonic()) > self._due:
            self._repeat(now)
        return busy, others

    def _repeat(self, now: float) -> None:
        """Send again what is overdue."""
        for request, entry in self._open.items():
            if now > entry.due:
                entry.wait_s = min(2 * entry.wait_s, max(self.repeat_s, MAX_REPEAT_S))
                entry.due = now + entry.wait_s
                try:
                    self.link.send(entry.message, id=request)
                except PeerLost:
                    pass
        self._due = min((entry.due for entry in self._open.values()), default=math.inf)


class Replies:
    """The answering side: a repeated request gets the same answer again.

    ``answer`` remembers the last ``keep`` replies of each sender; `known` resends one. An answer that took
    time goes where the request came from last: its sender may have dialled anew since. With very many senders
    each gets a smaller share, and who was silent longest is forgotten, so that nobody can fill the memory.
    """

    def __init__(self, link: Link, keep: int = 256) -> None:
        self.link, self.keep = link, keep
        self._sent: OrderedDict[str, OrderedDict[int, _Asked]] = OrderedDict()

    def known(self, envelope: Envelope) -> bool:
        """Whether this request came before; its answer, if there is one yet, is sent again."""
        sent = self._of(envelope.sender)
        asked = sent.get(envelope.id)
        if asked is None:
            sent[envelope.id] = _Asked(envelope.peer)
            share = min(self.keep, max(MIN_REPLIES, MAX_REPLIES // len(self._sent)))
            while len(sent) > share:
                sent.popitem(last=False)
            return False
        asked.peer = envelope.peer
        if asked.answer is not None:
            self._send(asked.answer, envelope.peer, envelope.id)
        return True

    def answer(self, envelope: Envelope, message: Message) -> None:
        """Answer ``envelope``, now or long after it came."""
        sent = self._sent.get(envelope.sender)
        asked = None if sent is None else sent.get(envelope.id)
        if asked is not None:
            asked.answer = message
        self._send(message, envelope.peer if asked is None else asked.peer, envelope.id)

    def answer_all(self, answers: Iterable[tuple[Envelope, Message]]) -> None:
        """Answer many; those to one sender travel together."""
        with self.link.together():
            for envelope, message in answers:
                self.answer(envelope, message)

    def _of(self, sender: str) -> OrderedDict[int, _Asked]:
        if sender not in self._sent:
            self._sent[sender] = OrderedDict()
            if len(self._sent) > MAX_PEERS:
                self._sent.popitem(last=False)
        self._sent.move_to_end(sender)
        return self._sent[sender]

    def forget(self, sender: str) -> None:
        """A sender is gone for good."""
        self._sent.pop(sender, None)

    def _send(self, message: Message, peer: bytes, request: int) -> None:
        try:
            self.link.send(message, to=peer, re=request)
        except PeerLost:
            pass
