"""Tell systemd about the state of this process (sd_notify); does nothing elsewhere."""

from __future__ import annotations

import os
import socket
import time


class Notifier:
    """READY, STOPPING and WATCHDOG over NOTIFY_SOCKET."""

    def __init__(self) -> None:
        address = os.environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._interval_s = int(os.environ.get("WATCHDOG_USEC", "0")) / 2e6
        self._next = 0.0

    def ready(self) -> None:
        """All services of this process can work."""
        self._send("READY=1")

    def stopping(self) -> None:
        """The process is on its way out."""
        self._send("STOPPING=1")

    def alive(self) -> None:
        """Called in every turn of the loop; sends at half the watchdog's interval."""
        if self._interval_s and (now := time.monotonic()) >= self._next:
            self._next = now + self._interval_s
            self._send("WATCHDOG=1")

    def _send(self, state: str) -> None:
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            try:
                channel.sendto(state.encode(), self._address)
            except OSError:
                pass  # a manager that went away is no reason to stop working
