"""A `Link` sends and receives messages; services know nothing else of the transport.

Two implementations: `ZmqLink` between processes (`zmq_link`), `local_pair` inside one, which passes the
message object and gives up its arrays. A link is used by one thread. On the bound side an envelope's
``peer`` says who sent it, and ``to`` who shall get it.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from contextlib import nullcontext
from typing import ContextManager, Deque, Dict, Optional, Tuple

from .errors import PeerLost
from .messages import Message
from .rejects import Rejects


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

    def together(self) -> ContextManager[None]:
        """What is sent while this is open goes out at its end, what is for one receiver as one transmission.

        What cannot be sent then is dropped: for requests that are repeated, and answers that are asked for.
        """
        return nullcontext()

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
