"""Open files and sockets that one process may have: as many as the system lets, not as its default says."""

from __future__ import annotations

import resource

from rollbus_wire.sockets import MAX_SOCKETS

#: A connection is a descriptor. More are of no use: a context of ZeroMQ ends at about as many sockets.
WANTED_FILES = 65536


def raise_limits() -> int:
    """Raise the soft limit of open files to what the hard one allows; what it is now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_FILES if hard == resource.RLIM_INFINITY else min(hard, WANTED_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return soft


def max_connections() -> tuple[int, int]:
    """(descriptors, ZeroMQ sockets) that a service of this machine may have once it has raised its limits."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (WANTED_FILES if hard == resource.RLIM_INFINITY else min(hard, WANTED_FILES)), MAX_SOCKETS
