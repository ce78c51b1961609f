"""Every ZeroMQ socket and every option of one, in this file.

Addresses: ``ipc://PATH`` (the default, in the run's 0700 folder) and ``tcp://HOST:PORT``. Only
loopback may be bound in the clear; any other address needs keys.
"""

from __future__ import annotations

import ipaddress
import os
from typing import Optional

import zmq

from .errors import BindRefused, WireError
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
#: ZMTP heartbeats of the bound side close a half-open TCP connection. The side that dials has none, because
#: libzmq 4.3.5 aborts where they go on over a connection that ended while its reader stood still with a full
#: queue; it notices by `ZmqLink.keep_alive`.
TCP_HEARTBEAT_MS = 5000
#: Names HOST:PORT of a SOCKS 5 proxy through which tcp addresses are dialled.
SOCKS_PROXY = "ROLLBUS_SOCKS_PROXY"


def context() -> zmq.Context:
    """The process's only context. ZeroMQ's default of 1023 sockets is raised before the first one is made."""
    shared: zmq.Context = zmq.Context.instance()
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


def router(context: zmq.Context, endpoint: str, max_frame_bytes: int = MAX_FRAME_BYTES) -> zmq.Socket:
    """A bound ROUTER. Port 0 of tcp takes a free one; read it with `bound_endpoint`."""
    check_bind(endpoint)
    socket = context.socket(zmq.ROUTER)
    _configure(socket, max_frame_bytes)
    socket.setsockopt(zmq.RCVHWM, MAX_WAITING_ASKED)
    socket.setsockopt(zmq.HEARTBEAT_IVL, TCP_HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3 * TCP_HEARTBEAT_MS)
    # Sending to a peer that is gone must fail instead of vanishing.
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    # A client that dials in again under its identity takes over its old connection.
    socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        socket.close(0)
        reason = "the address is in use" if error.errno == zmq.EADDRINUSE else str(error)
        raise BindRefused(
            "cannot listen on %s: %s; stop what uses it or choose another address" % (endpoint, reason)
        ) from None
    return socket


def dealer(context: zmq.Context, endpoint: str, identity: Optional[bytes] = None) -> zmq.Socket:
    """A DEALER connected to ``endpoint``; the connection is made and remade in the background."""
    socket = context.socket(zmq.DEALER)
    _configure(socket)
    if identity:
        socket.setsockopt(zmq.IDENTITY, identity)
    proxy = os.environ.get(SOCKS_PROXY)
    if proxy and endpoint.startswith("tcp://"):
        socket.setsockopt_string(zmq.SOCKS_PROXY, proxy)
    try:
        socket.connect(endpoint)
    except zmq.ZMQError as error:
        socket.close(0)
        raise WireError("cannot use address %r: %s" % (endpoint, error)) from None
    return socket


def bound_endpoint(socket: zmq.Socket) -> str:
    """The address a bound socket really has."""
    return bytes(socket.getsockopt(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode()


def check_bind(endpoint: str) -> None:
    """Refuse an address that strangers could reach."""
    scheme, _, rest = endpoint.partition("://")
    if scheme == "ipc" and rest:
        if len(rest.encode()) > 100:
            raise BindRefused(
                "socket path of %d bytes is longer than the 100 that the system allows: %s; "
                "set ROLLBUS_RUNTIME_DIR to a short folder" % (len(rest.encode()), rest)
            )
        return
    if scheme == "tcp" and rest:
        host = rest.rpartition(":")[0].strip("[]")
        if is_loopback(host):
            return
        raise BindRefused(
            "%s is reachable from other machines, which needs keys, and none are configured; "
            "listen on 127.0.0.1 and use a tunnel, or on ipc://" % endpoint
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
