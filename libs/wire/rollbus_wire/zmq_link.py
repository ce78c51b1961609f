"""Links over ZeroMQ sockets, with and without keys."""

from __future__ import annotations

import logging
import time
from collections import deque
from contextlib import contextmanager
from typing import Any, Deque, Dict, Iterator, List, Optional, Tuple

import zmq

from . import roles, sockets
from .codec import pack, unpack
from .errors import (
    AccessDenied,
    ForeignRun,
    LimitExceeded,
    PeerLost,
    VersionMismatch,
    WireError,
    short,
)
from .keys import Key
from .limits import (
    MAX_ELEMENTS,
    MAX_ELEMENTS_ASKED,
    MAX_FRAME_BYTES,
    MAX_KEY,
    MAX_REASON,
    MAX_TOGETHER,
    REJECTS_PER_TURN,
)
from .link import Envelope, Link
from .messages import PROTOCOL, Fault, Message, Ping, from_data, to_data

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


class ZmqLink(Link):
    """A link over one ZeroMQ socket; bound (ROUTER) or connected (DEALER)."""

    def __init__(self, socket: zmq.Socket, run: str = "", sender: str = "") -> None:
        super().__init__(run, sender)
        self.socket = socket
        self.bound = socket.socket_type == zmq.ROUTER
        self.endpoint = sockets.bound_endpoint(socket)
        self._max_elements = MAX_ELEMENTS_ASKED if self.bound else MAX_ELEMENTS
        self._heard, self._ask_at = time.monotonic(), 0.0
        #: Receiver -> headers that go out together; None: each is sent at once.
        self._held: Optional[Dict[bytes, List[bytes]]] = None
        #: Headers that came together and were not opened yet, and who sent them.
        self._rest: Deque[bytes] = deque()
        self._rest_of = b""
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
        if self._held is not None:
            held = self._held.setdefault(to, [])
            if len(frames) == 1:
                held.append(frames[0])
                return id
            self._send_held(to, held)  # what was said before goes before
        try:
            self._send(to, frames)
        except zmq.ZMQError as error:
            raise PeerLost(
                "%s to %r cannot be sent: %s" % (message.kind, to or self.endpoint, error)
            ) from None
        return id

    @contextmanager
    def together(self) -> Iterator[None]:
        if self._held is not None:  # inside of another, at whose end all goes out
            yield
            return
        held: Dict[bytes, List[bytes]] = {}
        self._held = held
        try:
            yield
        finally:
            self._held = None
            for to, headers in held.items():
                self._send_held(to, headers)

    def _send_held(self, to: bytes, headers: List[bytes]) -> None:
        """Send and forget ``headers``: one as it is, several behind an empty frame."""
        for start in range(0, len(headers), MAX_TOGETHER):
            some = headers[start : start + MAX_TOGETHER]
            try:
                self._send(to, some if len(some) == 1 else [b"", *some])
            except zmq.ZMQError:
                break
        headers.clear()

    def _send(self, to: bytes, frames: List[Any]) -> None:
        self._ask_at = 0.0
        sockets.send(self.socket, [to, *frames] if self.bound else frames)

    def recv(self) -> Optional[Envelope]:
        if not self._rest and time.monotonic() < self._ask_at:
            return None
        for _ in range(REJECTS_PER_TURN):
            try:
                frames, peer = self._next()
            except zmq.Again:
                now = time.monotonic()
                self._ask_at = now + min(MAX_SILENCE_S, (now - self._heard) / SILENCE_SHARE)
                return None
            self._heard = time.monotonic()
            if self.rejects.peers and self.rejects.ignores(peer):
                continue
            try:
                return self._open(frames, peer)
            except WireError as error:
                if self.rejects.add(error, peer, self.endpoint) and self.bound:
                    self._answer_fault(error, peer)
        return None

    def _next(self) -> Tuple[List[Any], bytes]:
        """The frames of the next message and who sent it. Raises `zmq.Again`."""
        if not self._rest:
            frames = self._receive()
            peer = frames.pop(0) if self.bound else b""
            if frames[0] or not 1 < len(frames) <= 1 + MAX_TOGETHER:
                return frames, peer
            self._rest.extend(frames[1:])
            self._rest_of = peer
        return [self._rest.popleft()], self._rest_of

    def _receive(self) -> List[Any]:
        return sockets.receive(self.socket, self.bound)

    @property
    def waiting(self) -> bool:
        """Whether something has arrived that the socket does not know of any more."""
        return bool(self._rest)

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
