"""What a link refused: counted by reason, logged now and then, and who sends too much of it is ignored."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from typing import Any, Callable, Dict, Iterable, Tuple

from .errors import WireError
from .limits import (
    IGNORED_S,
    LOG_AGAIN_S,
    MAX_REASON,
    MAX_REJECTED_PEERS,
    REJECTS_AT_ONCE,
    REJECTS_PER_S,
)

log = logging.getLogger("rollbus.wire")


class _Peer:
    """How many more refused messages are borne, and since when the number is true."""

    __slots__ = ("left", "since", "ignored_until")

    def __init__(self, now: float) -> None:
        self.left, self.since, self.ignored_until = float(REJECTS_AT_ONCE), now, 0.0


class Rejects:
    """Refusals of one link. ``counts`` by error code; "ignored" are those that were not even read."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.counts: Dict[str, int] = {}
        self.last = ""
        self._clock = clock
        #: Who was refused lately, the longest ago first; empty as long as everybody is in order.
        self.peers: OrderedDict[bytes, _Peer] = OrderedDict()
        #: By code: when it was logged, and how often it came since then.
        self._logged: Dict[str, Tuple[float, int]] = {}

    def add(self, error: WireError, peer: bytes, where: str = "") -> bool:
        """A message of ``peer`` was refused; whether it shall be told so."""
        now = self._clock()
        self.last = str(error)[:MAX_REASON]
        self._count(error.code)
        self._log(error.code, where, self.last, now)
        entry = self.peers.get(peer)
        if entry is None:
            entry = self.peers[peer] = _Peer(now)
            while len(self.peers) > MAX_REJECTED_PEERS:
                self.peers.popitem(last=False)
        self.peers.move_to_end(peer)
        entry.left = min(float(REJECTS_AT_ONCE), entry.left + (now - entry.since) * REJECTS_PER_S) - 1.0
        entry.since = now
        if entry.left >= 0.0:
            return True
        entry.ignored_until = now + IGNORED_S
        text = "a peer sent %d such messages at once and is ignored for %.0f s" % (REJECTS_AT_ONCE, IGNORED_S)
        self._log("ignored", where, text, now)
        return False

    def ignores(self, peer: bytes) -> bool:
        """Whether a message of ``peer`` is dropped unread; it is counted."""
        entry = self.peers.get(peer)
        if entry is None or self._clock() >= entry.ignored_until:
            return False
        self._count("ignored")
        return True

    def _count(self, code: str) -> None:
        self.counts[code] = self.counts.get(code, 0) + 1

    def _log(self, code: str, where: str, text: str, now: float) -> None:
        since, held_back = self._logged.get(code, (-LOG_AGAIN_S, 0))
        if now - since < LOG_AGAIN_S:
            self._logged[code] = (since, held_back + 1)
            return
        self._logged[code] = (now, 0)
        more = " (and %d more since the last line)" % held_back if held_back else ""
        log.warning("%s: a message was refused (%s): %s%s", where, code, text, more)


def rejected_by_plane(**links: Iterable[Any]) -> Dict[str, Dict[str, int]]:
    """Plane -> code -> refusals of its links (None: a link that is not there), for heartbeats."""
    planes: Dict[str, Dict[str, int]] = {}
    for plane, members in links.items():
        for link in members:
            for code, count in link.rejected.items() if link is not None else ():
                codes = planes.setdefault(plane, {})
                codes[code] = codes.get(code, 0) + count
    return planes
