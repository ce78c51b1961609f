"""Waiting for what comes over links, and taking it."""

from __future__ import annotations

import math
import time
from typing import Dict, Iterable, List

import zmq

from .errors import DeadlineExceeded, FaultReceived
from .limits import FIRST_OF_TURN, MESSAGES_PER_TURN, TURN_S
from .link import Envelope, Link, LocalLink
from .messages import Fault, Message
from .zmq_link import ZmqLink


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
        if any(link.waiting for link in self._remote.values()):
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
