"""Every ZeroMQ socket and every option of one, in this file.

Addresses: ``ipc://PATH`` (the default, in the run's 0700 folder) and ``tcp://HOST:PORT``, which may end in
``#KEY``, the public key of whom to expect there. Only loopback is bound or dialled in the clear; any other
address needs keys.
"""

from __future__ import annotations

import ipaddress
import os
from typing import Any, Callable, List, Optional, Sequence, Tuple

import zmq
from zmq.utils.monitor import parse_monitor_message

from .errors import AccessDenied, BindRefused, WireError
from .keys import VARIABLE, Key, require_curve
from .limits import MAX_FRAME_BYTES, MAX_WAITING_ASKED

#: Messages that may queue per connection. Flow is bounded by credit (one tick per slice, one
#: request per call), so this is a safety net that is never reached in order.
HIGH_WATER_MARK = 4096
#: Sockets of one process: one per dialled address and per plane that it binds.
MAX_SOCKETS = 16384
#: How long closing a socket may take to flush what was sent.
LINGER_MS = 500
RECONNECT_MS = 50
RECONNECT_MAX_MS = 1000
#: A dead TCP connection (half open, host gone) ends by the kernel's keep-alive: silent for the first, asked
#: again at the second, so often. ZMTP's own heartbeats are never switched on: libzmq 4.3.5 aborts the process
#: where they go on over a connection that ended while its reader stood still with a full queue. The side that
#: dials also notices by `ZmqLink.keep_alive`.
TCP_IDLE_S, TCP_ASK_EVERY_S, TCP_ASKED = 5, 5, 2
#: As plain numbers: joining members of an enumeration costs as much as sending a small frame.
_AT_ONCE, _MORE_AT_ONCE = int(zmq.DONTWAIT), int(zmq.DONTWAIT) | int(zmq.SNDMORE)
#: Names HOST:PORT of a SOCKS 5 proxy through which tcp addresses are dialled.
SOCKS_PROXY = "ROLLBUS_SOCKS_PROXY"


def context(shared: Optional[zmq.Context] = None) -> zmq.Context:
    """The process's context, or ``shared``. ZeroMQ's default of 1023 sockets is raised before any."""
    shared = shared or zmq.Context.instance()
    if shared.get(zmq.MAX_SOCKETS) < MAX_SOCKETS:
        shared.set(zmq.MAX_SOCKETS, MAX_SOCKETS)
    return shared


def _configure(socket: zmq.Socket, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
    socket.setsockopt(zmq.LINGER, LINGER_MS)
    socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
    socket.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
    socket.setsockopt(zmq.MAXMSGSIZE, max_frame_bytes)
    socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, TCP_IDLE_S)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, TCP_ASK_EVERY_S)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, TCP_ASKED)
    # Also while something sent is not acknowledged, when keep-alive is silent.
    socket.setsockopt(zmq.TCP_MAXRT, 1000 * (TCP_IDLE_S + TCP_ASKED * TCP_ASK_EVERY_S))


def router(
    context: zmq.Context, endpoint: str, max_frame_bytes: int = MAX_FRAME_BYTES,
    secure: Optional[Callable[[zmq.Socket], None]] = None,
) -> zmq.Socket:  # fmt: skip
    """A bound ROUTER. Port 0 of tcp takes a free one; read it with `bound_endpoint`.

    ``secure`` sets the options that make it ask who dials; without it only loopback and ipc are bound.
    """
    check_bind(endpoint, keyed=secure is not None)
    socket = context.socket(zmq.ROUTER)
    _configure(socket, max_frame_bytes)
    socket.setsockopt(zmq.RCVHWM, MAX_WAITING_ASKED)
    # Sending to a peer that is gone must fail instead of vanishing.
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    if secure is None:
        # A client that dials in again under its identity takes over its old connection.
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
    else:
        secure(socket)
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        socket.close(0)
        reason = "the address is in use" if error.errno == zmq.EADDRINUSE else str(error)
        raise BindRefused(
            "cannot listen on %s: %s; stop what uses it or choose another address" % (endpoint, reason)
        ) from None
    if endpoint.startswith("ipc://"):
        os.chmod(bound_endpoint(socket)[len("ipc://") :], 0o600)
    return socket


def dealer(
    context: zmq.Context, endpoint: str, identity: Optional[bytes] = None, key: Optional[Key] = None,
    max_frame_bytes: int = MAX_FRAME_BYTES,
) -> zmq.Socket:  # fmt: skip
    """A DEALER connected to ``endpoint``; the connection is made and remade in the background.

    With a ``key`` every tcp address is dialled with CURVE: it must be the server that the address names, or
    that the key's file does. Without one, tcp beyond loopback raises `AccessDenied`.
    """
    address, server = split_key(endpoint)
    if "://" not in address:
        raise WireError("address %r has no scheme; give tcp://HOST:PORT or ipc://PATH" % endpoint)
    if address.startswith("tcp://") and not address.rpartition(":")[2].isdigit():
        raise WireError("address %r has no port; give tcp://HOST:PORT, such as %s:5555" % (endpoint, address))
    socket = context.socket(zmq.DEALER)
    _configure(socket, max_frame_bytes)
    if identity:
        socket.setsockopt(zmq.IDENTITY, identity)
    proxy = os.environ.get(SOCKS_PROXY)
    if proxy and endpoint.startswith("tcp://"):
        socket.setsockopt_string(zmq.SOCKS_PROXY, proxy)
    try:
        if address.startswith("tcp://"):
            _secure_dialer(socket, address, server, key)
        socket.connect(address)
    except AccessDenied:
        socket.close(0)
        raise
    except zmq.ZMQError as error:
        socket.close(0)
        raise WireError("cannot use address %r: %s" % (endpoint, error)) from None
    return socket


def _secure_dialer(socket: zmq.Socket, address: str, server: bytes, key: Optional[Key]) -> None:
    if key is None:
        host = address[len("tcp://") :].rpartition(":")[0].strip("[]")
        if server or not is_loopback(host):
            raise AccessDenied(
                "%s is dialled with a key only, and none is given: pass key=FILE (made by `rollbus keys "
                "create`), or set %s for services" % (address, VARIABLE)
            )
        return
    require_curve()
    if not (server or key.server_key):
        raise AccessDenied(
            "neither %s nor key %s says which server to expect there; make the key anew with --server NAME"
            % (address, key.name)
        )
    socket.curve_publickey, socket.curve_secretkey = key.public, key.secret
    socket.curve_serverkey = server or key.server_key
    handshakes(socket)  # from before the first one


def send(socket: zmq.Socket, frames: Sequence[Any]) -> None:
    """Send one message, at once or not at all. Raises `zmq.ZMQError`."""
    for frame in frames[:-1]:
        socket.send(frame, _MORE_AT_ONCE)
    socket.send(frames[-1], _AT_ONCE)


def receive(socket: zmq.Socket, bound: bool) -> List[Any]:
    """The frames of the next message; a ``bound`` socket says first who sent it. Raises `zmq.Again`."""
    frames: List[Any] = [socket.recv(_AT_ONCE)] if bound else []
    more = True
    while more:
        frame = socket.recv(_AT_ONCE, copy=False)
        more = frame.more
        frames.append(frame.bytes)
    return frames


def handshakes(socket: zmq.Socket) -> zmq.Socket:
    """Where `failed_handshakes` hears how handshakes of a dialler end; the same one at each call."""
    events = (
        zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    )  # fmt: skip
    monitor: zmq.Socket = socket.get_monitor_socket(events)
    return monitor


def failed_handshakes(events: zmq.Socket) -> Tuple[str, int]:
    """Why the server does not take this side's key, if it has said so, and how often it just hung up.

    After a reason libzmq does not try again.
    """
    reason, broken_off = "", 0
    while events.poll(0):
        kind = parse_monitor_message(events.recv_multipart())["event"]
        if kind == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            reason = (
                "is refused: it was revoked, is not on the server's list, or its role has no place there; "
                "`rollbus keys list` and the server's log on its host say which, `rollbus keys create` makes "
                "another key"
            )
        elif kind == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
            reason = "cannot be used: the server there has no keys"
        broken_off += kind == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    return reason, broken_off


def split_key(endpoint: str) -> Tuple[str, bytes]:
    """The plain address, and the public key behind its "#" if it is tcp and has one."""
    if not endpoint.startswith("tcp://"):
        return endpoint, b""
    address, _, key = endpoint.partition("#")
    return address, key.encode()


def announced(endpoint: str, host: str, public: bytes) -> str:
    """What to tell those who shall dial a bound ``endpoint``: a name instead of a wildcard, and its key."""
    bound, _, port = endpoint.rpartition(":")
    if bound in ("tcp://0.0.0.0", "tcp://[::]", "tcp://*"):
        endpoint = "tcp://%s:%s" % (host, port)
    return "%s#%s" % (endpoint, public.decode())


def bound_endpoint(socket: zmq.Socket) -> str:
    """The address a bound socket really has."""
    return bytes(socket.getsockopt(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode()


def check_bind(endpoint: str, keyed: bool = False) -> None:
    """Refuse an address that strangers could reach, unless it asks for keys."""
    scheme, _, rest = endpoint.partition("://")
    if scheme == "ipc" and rest.startswith("@"):
        raise BindRefused(
            "%s is an abstract name, which every user of this machine may dial; use ipc://PATH" % endpoint
        )
    if scheme == "ipc" and rest:
        if len(rest.encode()) > 100:
            raise BindRefused(
                "socket path of %d bytes is longer than the 100 that the system allows: %s; "
                "set ROLLBUS_RUNTIME_DIR to a short folder" % (len(rest.encode()), rest)
            )
        return
    if scheme == "tcp" and rest:
        host = rest.rpartition(":")[0].strip("[]")
        if keyed or is_loopback(host):
            return
        raise BindRefused(
            "%s is reachable from other machines, which needs keys, and none are configured: make them with "
            "`rollbus keys create` and set %s to their folder (docs/security.md), or listen on 127.0.0.1 and "
            "use a tunnel, or on ipc://" % (endpoint, VARIABLE)
        )
    raise BindRefused("address %r is neither ipc://PATH nor tcp://HOST:PORT" % endpoint)


def is_loopback(host: str) -> bool:
    """Whether ``host`` is this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
