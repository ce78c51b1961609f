"""A `Link` sends and receives messages; services know nothing else of the transport.

Two implementations: `ZmqLink` between processes, `local_pair` inside one, which passes the message
object and gives up its arrays. A link is used by one thread. On the bound side an envelope's
``peer`` says who sent it, and ``to`` who shall get it.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import time
from collections import deque
from typing import Any, Deque, Dict, Iterable, List, Optional, Tuple

import zmq

from . import roles, sockets
from .codec import pack, unpack
from .errors import (
    AccessDenied,
    DeadlineExceeded,
    FaultReceived,
    ForeignRun,
    LimitExceeded,
    PeerLost,
    VersionMismatch,
    WireError,
    short,
)
from .keys import Key
from .limits import (
    FIRST_OF_TURN,
    MAX_ELEMENTS,
    MAX_ELEMENTS_ASKED,
    MAX_FRAME_BYTES,
    MAX_KEY,
    MAX_REASON,
    MESSAGES_PER_TURN,
    REJECTS_PER_TURN,
    TURN_S,
)
from .messages import PROTOCOL, Fault, Message, Ping, from_data, to_data
from .rejects import Rejects

log = logging.getLogger("rollbus.link")

#: A socket that was silent for t is asked again after t / `SILENCE_SHARE`, at most `MAX_SILENCE_S`,
#: unless something was sent over it or a `Poller` saw it readable: asking an empty one costs 3 us, and a busy
#: loop has several.
SILENCE_SHARE, MAX_SILENCE_S = 8, 0.002
#: How often a silent link that was dialled with a key looks whether the key was refused, and how often a
#: server that hangs up is warned of.
HANDSHAKE_S, WARN_S = 0.1, 10.0


#: `keep_alive`: a silent other side is asked after the first; if it stays silent it is dialled anew after the
#: second, then after twice as long each time, up to the third.
PING_S, REDIAL_S, MAX_REDIAL_S = 1.0, 3.0, 30.0


class Envelope:
    """A message with its addresses: own id, id of the request it answers, run, sender."""

    __slots__ = ("message", "id", "re", "run", "sender", "peer")

    def __init__(
        self, message: Message, id: int, re: int = 0, run: str = "", sender: str = "",
        peer: bytes = b"",
    ) -> None:  # fmt: skip
        self.message, self.id, self.re = message, id, re
        self.run, self.sender, self.peer = run, sender, peer


class Link:
    """Send, receive, close. ``rejects`` knows what arrived and was refused."""

    #: Whether arrays are copied on the way.
    remote = True
    #: Times that a silent other side was dialled anew.
    redials = 0

    def __init__(self, run: str = "", sender: str = "") -> None:
        self.run, self.sender = run, sender or "%08x" % int.from_bytes(os.urandom(4), "big")
        self.rejects = Rejects()
        self._ids = itertools.count(1)

    def send(self, message: Message, to: bytes = b"", re: int = 0, id: int = 0) -> int:
        """Send and return the message's id. Raises `PeerLost` if ``to`` is not connected.

        ``id`` repeats an earlier request under its own id; the receiver answers it only once.
        """
        raise NotImplementedError

    def recv(self) -> Optional[Envelope]:
        """The next message, or None if none is there. Unreadable arrivals are counted."""
        raise NotImplementedError

    def keep_alive(self) -> None:
        """Call after receiving, often: notices a connection that is dead without having ended.

        The other side must answer `Ping`. What was under way is lost, as with any lost connection.
        """

    def close(self) -> None:
        """Give the transport back; what was sent is flushed for a bounded time."""
        raise NotImplementedError

    @property
    def rejected(self) -> Dict[str, int]:
        """Arrivals that were refused, by error code."""
        return self.rejects.counts


class ZmqLink(Link):
    """A link over one ZeroMQ socket; bound (ROUTER) or connected (DEALER)."""

    def __init__(self, socket: zmq.Socket, run: str = "", sender: str = "") -> None:
        super().__init__(run, sender)
        self.socket = socket
        self.bound = socket.socket_type == zmq.ROUTER
        self.endpoint = sockets.bound_endpoint(socket)
        self._max_elements = MAX_ELEMENTS_ASKED if self.bound else MAX_ELEMENTS
        self._heard, self._ask_at = time.monotonic(), 0.0
        self._ping_at, self._redial_s = 0.0, REDIAL_S
        #: Since when silence counts: the last message, or the last time it was dialled.
        self._silent_since = self._heard

    @classmethod
    def bind(
        cls, endpoint: str, run: str = "", sender: str = "", *, max_frame_bytes: int = MAX_FRAME_BYTES
    ) -> ZmqLink:
        """Listen on ``endpoint``; who sends a larger frame loses its connection."""
        return cls(sockets.router(sockets.context(), endpoint, max_frame_bytes), run, sender)

    @classmethod
    def connect(
        cls, endpoint: str, run: str = "", sender: str = "", key: Optional[Key] = None,
        max_frame_bytes: int = MAX_FRAME_BYTES,
    ) -> ZmqLink:  # fmt: skip
        """Dial ``endpoint``, with ``key`` if it is tcp; see `sockets.dealer`."""
        socket = sockets.dealer(sockets.context(), endpoint, key=key, max_frame_bytes=max_frame_bytes)
        if key is None or not endpoint.startswith("tcp://"):
            return cls(socket, run, sender)
        return KeyedLink(socket, key, run, sender)

    def send(self, message: Message, to: bytes = b"", re: int = 0, id: int = 0) -> int:
        id = id or next(self._ids)
        header = {
            "v": PROTOCOL[0], "k": message.kind, "run": self.run, "id": id, "re": re,
            "from": self.sender, "b": to_data(message),
        }  # fmt: skip
        frames = pack(header)
        if self.bound:
            frames.insert(0, to)
        self._ask_at = 0.0
        try:
            sockets.send(self.socket, frames)
        except zmq.ZMQError as error:
            raise PeerLost(
                "%s to %r cannot be sent: %s" % (message.kind, to or self.endpoint, error)
            ) from None
        return id

    def recv(self) -> Optional[Envelope]:
        if time.monotonic() < self._ask_at:
            return None
        for _ in range(REJECTS_PER_TURN):
            try:
                frames = self._receive()
            except zmq.Again:
                now = time.monotonic()
                self._ask_at = now + min(MAX_SILENCE_S, (now - self._heard) / SILENCE_SHARE)
                return None
            self._heard = time.monotonic()
            peer = frames.pop(0) if self.bound else b""
            if self.rejects.peers and self.rejects.ignores(peer):
                continue
            try:
                return self._open(frames, peer)
            except WireError as error:
                if self.rejects.add(error, peer, self.endpoint) and self.bound:
                    self._answer_fault(error, peer)
        return None

    def _receive(self) -> List[Any]:
        return sockets.receive(self.socket, self.bound)

    def keep_alive(self) -> None:
        now = time.monotonic()
        if self._heard > self._silent_since:
            self._silent_since, self._redial_s = self._heard, REDIAL_S
        silent_s = now - self._silent_since
        if silent_s < PING_S or self.bound:
            return
        if silent_s > self._redial_s:
            self._redial(now)
        elif now >= self._ping_at:
            self._ping_at = now + PING_S
            try:
                self.send(Ping())
            except PeerLost:
                pass

    def _redial(self, now: float) -> None:
        self.socket.disconnect(self.endpoint)
        self.socket.connect(self.endpoint)
        self.redials += 1
        self._silent_since, self._ping_at = now, 0.0
        self._redial_s = min(2 * self._redial_s, MAX_REDIAL_S)

    def readable(self) -> None:
        """A poller saw that something has arrived: the next `recv` asks the socket."""
        self._ask_at = 0.0

    def _open(self, frames: List[bytes], peer: bytes) -> Envelope:
        header = unpack(frames, self._max_elements)
        if not isinstance(header, dict):
            raise WireError("the header is a %s, not a map" % type(header).__name__)
        if header.get("v") != PROTOCOL[0]:
            raise VersionMismatch(
                "the sender speaks protocol %s, this side %d.%d; install the same major version"
                % (short(header.get("v")), *PROTOCOL)
            )
        run, id, re = header.get("run", ""), header.get("id", 0), header.get("re", 0)
        if self.run and run and run != self.run:
            raise ForeignRun("message of run %s, this is run %r" % (short(run), self.run))
        sender = header.get("from", "")
        if not (type(id) is int and type(re) is int and type(run) is str and type(sender) is str):
            raise WireError("envelope fields have wrong types")
        if len(sender) > MAX_KEY or len(run) > MAX_KEY:
            raise LimitExceeded("from or run is longer than %d characters" % MAX_KEY)
        self._check_kind(kind := header.get("k"))
        return Envelope(from_data(kind, header.get("b")), id, re, run, sender, peer)

    def _check_kind(self, kind: Any) -> None:
        """Raise `WireError` if no message of this kind is taken here; its body was not looked at."""

    def _answer_fault(self, error: WireError, peer: bytes) -> None:
        try:
            self.send(Fault(code=error.code, text=str(error)[:MAX_REASON]), to=peer)
        except PeerLost:
            pass

    def close(self) -> None:
        self.socket.close()


class KeyedLink(ZmqLink):
    """A link that was dialled with a key. It ends with `AccessDenied` when the other side refuses the key."""

    def __init__(self, socket: zmq.Socket, key: Key, run: str, sender: str) -> None:
        super().__init__(socket, run, sender)
        self.key, self._look_at, self._warn_at, self._refusal = key, 0.0, 0.0, ""
        self._events = sockets.handshakes(socket)

    def recv(self) -> Optional[Envelope]:
        envelope = super().recv()
        if envelope is None and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + HANDSHAKE_S
            if refused := self._look():
                raise refused
        return envelope

    def send(self, message: Message, to: bytes = b"", re: int = 0, id: int = 0) -> int:
        try:
            return super().send(message, to, re, id)
        except PeerLost as error:
            raise self._look() or error from None  # a refusal says more

    def _look(self) -> Optional[AccessDenied]:
        """What to raise if the key was refused; warns if the server hangs up on it."""
        reason, broken_off = sockets.failed_handshakes(self._events)
        self._refusal = reason = self._refusal or reason
        if reason:
            return AccessDenied(
                "%s: key %s (role %s) %s (docs/security.md)"
                % (self.endpoint, self.key.name, self.key.role, reason)
            )
        if broken_off and self._look_at >= self._warn_at:
            self._warn_at = self._look_at + WARN_S
            log.warning(
                "%s hangs up on key %s (role %s), which expects a %s there, by the key in the address or in "
                "its own file: that one was made anew, or keys of this role do not dial this socket, or "
                "something else listens", self.endpoint, self.key.name, self.key.role,
                roles.DIALS.get(self.key.role, "server"),
            )  # fmt: skip
        return None

    def close(self) -> None:
        self.socket.disable_monitor()
        self._events.close(0)
        super().close()


class LocalLink(Link):
    """One end of an in-process link: what is sent here arrives there, as the same object."""

    remote = False

    def __init__(self, inbox: Deque[Envelope], outbox: Deque[Envelope], run: str, sender: str):
        super().__init__(run, sender)
        self.inbox, self._outbox = inbox, outbox
        self.closed = False

    def send(self, message: Message, to: bytes = b"", re: int = 0, id: int = 0) -> int:
        if self.closed:
            raise PeerLost("the link is closed")
        id = id or next(self._ids)
        self._outbox.append(Envelope(message, id, re, self.run, self.sender, b"local"))
        return id

    def recv(self) -> Optional[Envelope]:
        return self.inbox.popleft() if self.inbox else None

    def close(self) -> None:
        self.closed = True


def local_pair(run: str = "", senders: Tuple[str, str] = ("", "")) -> Tuple[LocalLink, LocalLink]:
    """Two ends inside one process."""
    a: Deque[Envelope] = deque()
    b: Deque[Envelope] = deque()
    return LocalLink(a, b, run, senders[0]), LocalLink(b, a, run, senders[1])


class Poller:
    """Waits until one of many links has something. Closed links are forgotten by themselves."""

    def __init__(self) -> None:
        self._poller = zmq.Poller()
        self._remote: Dict[zmq.Socket, ZmqLink] = {}
        self._local: List[LocalLink] = []

    def add(self, link: Link) -> None:
        """Watch ``link``."""
        if isinstance(link, ZmqLink):
            self._remote[link.socket] = link
            self._poller.register(link.socket, zmq.POLLIN)
        elif isinstance(link, LocalLink):
            self._local.append(link)

    def remove(self, link: Link) -> None:
        """Stop watching ``link``."""
        if isinstance(link, ZmqLink):
            del self._remote[link.socket]
            self._poller.unregister(link.socket)
        elif isinstance(link, LocalLink):
            self._local.remove(link)

    def wait(self, timeout_s: float) -> bool:
        """Whether something arrived within ``timeout_s`` seconds."""
        for link in [each for each in self._remote.values() if each.socket.closed]:
            self.remove(link)
        for local in [each for each in self._local if each.closed]:
            self.remove(local)
        if any(local.inbox for local in self._local):
            return True
        ready = self._poller.poll(math.ceil(max(0.0, timeout_s) * 1000))
        for socket, _ in ready:
            self._remote[socket].readable()
        return bool(ready)


def drain(link: Link, at_most: int = MESSAGES_PER_TURN) -> Iterable[Envelope]:
    """What has arrived, up to what one turn takes: nobody who never stops sending holds the others up.

    ``at_most``: how many are awaited, where that is known: to ask an empty socket for more costs 4 us.
    """
    end = time.monotonic() + TURN_S
    for count in range(min(at_most, MESSAGES_PER_TURN)):
        envelope = link.recv()
        if envelope is None:
            return
        yield envelope
        if count >= FIRST_OF_TURN and time.monotonic() >= end:
            return


def wait_reply(link: Link, request: int, timeout_s: float) -> Message:
    """Block for the answer to ``request``; late answers to other requests are dropped.

    Raises `DeadlineExceeded`, or `FaultReceived` if the answer is a fault.
    """
    poller = Poller()
    poller.add(link)
    deadline = time.monotonic() + timeout_s
    while True:
        for envelope in drain(link):
            if envelope.re == request:
                message = envelope.message
                if isinstance(message, Fault):
                    raise FaultReceived(message.code, message.text)
                return message
        left = deadline - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded("no answer to request %d within %.1f s" % (request, timeout_s))
        poller.wait(left)
