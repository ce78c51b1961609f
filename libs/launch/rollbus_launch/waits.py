"""What a process says while its services cannot begin: for whom they wait, and when they go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from rollbus_core.service import BROKER, Service

#: A wait is told of once it has taken this long; in a busy loop it is looked for so often only.
TOLD_S, LOOK_EVERY_S = 2.0, 0.2


class Waits:
    """Call `turn` in every turn of the process. ``registry``: where its broker is."""

    def __init__(self, log: Any, registry: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._registry, self._clock = log, registry, clock
        #: What is waited for -> since when; those that were told of.
        self._since: dict[str, float] = {}
        self._told: set[str] = set()
        self._look_at = 0.0

    def turn(self, services: Sequence[Service]) -> None:
        """Tell of waits that last, and of those that are over."""
        now = self._clock()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_EVERY_S
        awaited = {service.awaits for service in services} - {""}
        for what in self._told - awaited:
            self._log.info(f"goes on: {what} is there")
        self._told &= awaited
        self._since = {what: self._since.get(what, now) for what in awaited}
        for what, since in self._since.items():
            if now - since >= TOLD_S and what not in self._told:
                self._told.add(what)
                self._log.info(f"waits for {what} {self._where(what)}")

    def _where(self, what: str) -> str:
        if what == BROKER:
            return f"at {self._registry} (rollbus serve broker; one of another host: ROLLBUS_REGISTRY)"
        return f"(who is there: rollbus ps; the broker is at {self._registry})"
