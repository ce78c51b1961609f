"""The gate of a process: whom it lets dial the sockets it binds with keys, and what they may say there.

libzmq asks the gate at every handshake (ZAP, RFC 27) who is let in; without a key nobody gets that far. Every
message is then checked against the list as it is now, before it is decoded: a key that is revoked ends its
live sessions. docs/security.md.
"""

from __future__ import annotations

import queue
import socket as host_names
import threading
import time
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple, Union

import zmq
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from . import roles, sockets
from .errors import Forbidden, PeerLost
from .keys import Allowed, AllowList, Key
from .limits import MAX_FRAME_BYTES, REJECTS_PER_TURN
from .link import Envelope
from .zmq_link import ZmqLink

#: How often the list is looked at, so that a revocation acts within this long.
REREAD_S = 0.2
#: One log line per plane, reason and key in this time, with the number of refusals since.
LOG_EVERY_S = 10.0
_MAX_REMEMBERED = 1024
#: Connections and senders that are remembered per socket.
_MAX_SENDERS = 16384
_FAILED = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL


class Refusal(NamedTuple):
    """What refusals are counted by.

    ``reason``: "handshake" (no key, another server's key, or broken off), "unknown-key", "revoked", "role"
    (may not connect here), "message" (may not send this here), "sender" (another key's sender id).
    """

    plane: str
    reason: str
    role: str = ""


class Gate:
    """One allow-list and its handshake thread. `bind` makes sockets, in a context of the gate's own."""

    def __init__(
        self, folder: Union[str, Path], log: Optional[Callable[[str], None]] = None, host: str = ""
    ) -> None:
        """``folder``: the allow-list. ``host``: by what name others reach what is bound to a wildcard."""
        self.allowed, self._log = AllowList(folder), log or (lambda text: None)
        self.host = host or host_names.gethostname()
        self.context = sockets.context(zmq.Context())
        self.counts: Dict[Refusal, int] = Counter()
        self._lock = threading.Lock()
        self._told: Dict[Tuple[str, ...], Tuple[float, int]] = {}
        self._monitors: queue.SimpleQueue[Tuple[zmq.Socket, str]] = queue.SimpleQueue()
        self._num_monitors = 0
        self._stop = threading.Event()
        handshakes = self.context.socket(zmq.REP)
        handshakes.bind("inproc://zeromq.zap.01")
        self._thread = threading.Thread(target=self._serve, args=(handshakes,), name="gate", daemon=True)
        self._thread.start()
        self._tell_list()

    def bind(
        self, endpoint: str, plane: str, key: Key, run: str = "", sender: str = "",
        max_frame_bytes: int = MAX_FRAME_BYTES,
    ) -> GuardedLink:  # fmt: skip
        """Listen on ``endpoint`` as ``key`` for those whom `roles` lets dial ``plane``."""

        def secure(socket: zmq.Socket) -> None:
            socket.curve_server = True
            socket.curve_secretkey = key.secret
            socket.setsockopt(zmq.ZAP_DOMAIN, plane.encode())
            self._num_monitors += 1
            address = "inproc://refusals-%d" % self._num_monitors
            socket.monitor(address, _FAILED)
            monitor = self.context.socket(zmq.PAIR)
            monitor.connect(address)  # from before the first handshake
            self._monitors.put((monitor, plane))

        socket = sockets.router(self.context, endpoint, max_frame_bytes, secure)
        return GuardedLink(socket, self, plane, key, run, sender)

    def off_list(self, public: str) -> str:
        """The name of the key ``public`` if it is not on the list now, the key itself if it never was; empty:
        it is there.
        """
        entry = self.allowed.get(public)
        return "" if entry is not None and not entry.revoked else entry.name if entry else public

    def refuse(self, plane: str, reason: str, role: str = "", who: str = "") -> None:
        """Count a refusal, and log it unless the same was logged lately."""
        with self._lock:
            refusal = Refusal(plane, reason, role)
            self.counts[refusal] += 1
            now, place = time.monotonic(), (plane, reason, who)
            told, since = self._told.get(place, (0.0, 0))
            if told and now - told < LOG_EVERY_S:
                self._told[place] = (told, since + 1)
                return
            while len(self._told) >= _MAX_REMEMBERED:
                del self._told[next(iter(self._told))]
            self._told[place] = (now, 0)
        more = " (and %d times more since)" % since if since else ""
        self._log("refused at the %s socket: %s %s%s" % (plane, reason, who or "anonymous", more))

    def close(self) -> None:
        """End the thread and close what is still bound, after a bounded time for what was sent."""
        self._stop.set()
        self._thread.join(5.0)
        self.context.destroy(sockets.LINGER_MS)

    # --- the gate's thread -------------------------------------------------------------------

    def _serve(self, handshakes: zmq.Socket) -> None:
        poller = zmq.Poller()
        poller.register(handshakes, zmq.POLLIN)
        planes: Dict[zmq.Socket, str] = {}
        looked = time.monotonic()
        while not self._stop.is_set():
            for socket, _ in poller.poll(int(1000 * REREAD_S)):
                if socket is handshakes:
                    handshakes.send_multipart(self._answer(handshakes.recv_multipart()))
                else:
                    self._failed(socket, planes[socket])
            while not self._monitors.empty():
                monitor, plane = self._monitors.get()
                planes[monitor] = plane
                poller.register(monitor, zmq.POLLIN)
            if time.monotonic() - looked >= REREAD_S:
                looked = time.monotonic()
                if self.allowed.reread():
                    self._tell_list()
        for socket in (handshakes, *planes):
            socket.close(0)

    def _answer(self, frames: List[bytes]) -> List[bytes]:
        """The answer to libzmq's question (version, id, domain, address, identity, mechanism, key)."""
        version, request, domain, address, _, mechanism = frames[:6]
        plane = domain.decode("utf-8", "replace")
        public = z85.encode(frames[6]).decode() if mechanism == b"CURVE" and len(frames) == 7 else ""
        entry, reason = self.allowed.get(public), ""
        if entry is None:
            reason = "unknown-key"
        elif entry.revoked:
            reason = "revoked"
        elif not roles.may_connect(plane, entry.role):
            reason = "role"
        if reason:
            who = "%s from %s" % (entry.name if entry else public, address.decode("utf-8", "replace"))
            self.refuse(plane, reason, entry.role if entry else "", who)
            return [version, request, b"400", reason.encode(), b"", b""]
        return [version, request, b"200", b"OK", public.encode(), b""]

    def _failed(self, monitor: zmq.Socket, plane: str) -> None:
        kind = parse_monitor_message(monitor.recv_multipart())["event"]
        if kind & _FAILED:
            self.refuse(plane, "handshake")

    def _tell_list(self) -> None:
        for problem in self.allowed.problems:
            self._log("not in the allow-list: %s" % problem)
        if not len(self.allowed):
            self._log("the allow-list %s is empty: everybody is refused" % self.allowed.folder)


class GuardedLink(ZmqLink):
    """A bound link behind a gate. ``endpoint`` carries the key that dialers must expect."""

    def __init__(self, socket: zmq.Socket, gate: Gate, plane: str, key: Key, run: str, sender: str) -> None:
        super().__init__(socket, run, sender)
        self.gate, self.plane = gate, plane
        self.endpoint = sockets.announced(self.endpoint, gate.host, key.public)
        #: Who sent what is being opened.
        self._public, self._entry = "", Allowed("", "", True)
        #: Connection -> public key, and sender id -> the key that used it first; the oldest are forgotten.
        self._connections: OrderedDict[bytes, str] = OrderedDict()
        self._senders: OrderedDict[str, str] = OrderedDict()

    def _receive(self) -> List[Any]:
        first = self.socket.recv(zmq.DONTWAIT, copy=False)
        self._public = str(first.get("User-Id"))
        return [first.bytes, *sockets.receive(self.socket, bound=False)]

    def _next(self) -> Tuple[List[Any], bytes]:
        """The next message of somebody who is on the list now; so many of others at most are passed over."""
        for _ in range(REJECTS_PER_TURN):
            frames, peer = super()._next()
            public, entry = self._public, self.gate.allowed.get(self._public)
            if entry is not None and not entry.revoked:
                _remember(self._connections, peer, public)
                self._entry = entry
                return frames, peer
            role, who = (entry.role, entry.name) if entry else ("", public)
            self.gate.refuse(self.plane, "revoked" if entry else "unknown-key", role, who)
        raise zmq.Again()

    def _check_kind(self, kind: Any) -> None:
        self._forbid("message", roles.refusal(self.plane, self._entry.role, kind))

    def _open(self, frames: List[bytes], peer: bytes) -> Envelope:
        envelope = super()._open(frames, peer)
        self._forbid("message", roles.join_refusal(self._entry.role, envelope.message))
        if self._senders.setdefault(envelope.sender, self._public) != self._public:
            self._forbid("sender", "sender id %r belongs to another key" % envelope.sender[:32])
        if len(self._senders) > _MAX_SENDERS:
            self._senders.popitem(last=False)
        return envelope

    def _forbid(self, reason: str, refusal: str) -> None:
        """Count and raise ``refusal``, if there is one, of what is being opened."""
        if refusal:
            self.gate.refuse(self.plane, reason, self._entry.role, self._entry.name)
            raise Forbidden(refusal)

    def revoked(self, sender: str) -> str:
        """The name of the key that ``sender`` used, if it is not on the list any more; empty otherwise."""
        public = self._senders.get(sender)
        return self.gate.off_list(public) if public is not None else ""

    def send(self, message, to: bytes = b"", re: int = 0, id: int = 0) -> int:  # type: ignore[no-untyped-def]
        public = self._connections.get(to)
        if public is not None and (name := self.gate.off_list(public)):
            raise PeerLost("key %s is revoked" % name)
        return super().send(message, to, re, id)

    def close(self) -> None:
        self.socket.disable_monitor()
        super().close()


def _remember(places: OrderedDict[bytes, str], place: bytes, public: str) -> None:
    if places.get(place) != public:
        places[place] = public
        if len(places) > _MAX_SENDERS:
            places.popitem(last=False)
