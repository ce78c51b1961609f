"""What the user of `run_env` is told: that a hub is waited for, is there, and is gone."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

from .sockets import split_key

log = logging.getLogger("rollbus.peer")

#: A hub that has not answered for so long is said to be waited for.
WAITS_S = 2.0


def say(text: str, *values: Any) -> None:
    """A line of the log, at INFO; a plain one on stderr where nobody has set up logging."""
    log.info(text, *values)
    if not log.hasHandlers():
        print("rollbus: " + text % values, file=sys.stderr, flush=True)


class Told:
    """What has been said of the hub at ``endpoint``."""

    def __init__(self, endpoint: str, rows: str) -> None:
        self._address, self._rows = split_key(endpoint)[0], rows
        self._since, self._connected, self._waits = time.monotonic(), False, False

    def turn(self, connected: bool) -> None:
        """Say what has changed: once that a hub is waited for, until there is one."""
        if connected and not self._connected:
            self._connected, self._waits = True, False
            say("connected to the hub at %s: it has %s", self._address, self._rows)
        elif not connected and not self._waits and time.monotonic() - self._since > WAITS_S:
            self._waits = True
            say("no hub answers at %s; waiting (one that has keys needs key=FILE)", self._address)

    def gone(self, why: str) -> None:
        """The hub, if there was one, is not there any more."""
        if self._connected:
            say("the hub at %s is gone: %s", self._address, why)
            self._connected, self._since = False, time.monotonic()
