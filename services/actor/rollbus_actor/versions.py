"""From a notice to weights that act: newest wins, and only whole versions are taken."""

from __future__ import annotations

import time
from collections.abc import Callable

from rollbus_actor.engines.base import InferenceEngine
from rollbus_core.version import Version
from rollbus_core.weights.base import WeightSource, from_image
from rollbus_wire.errors import StaleRead
from rollbus_wire.messages import Applied, Notice


class Versions:
    """The weights of one policy in one engine."""

    def __init__(
        self, source: WeightSource, engine: InferenceEngine, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._source, self._engine, self._clock = source, engine, clock
        self._pending: tuple[Notice, float] | None = None
        #: Versions that were overwritten or damaged before they could be read.
        self.stale_reads = 0
        self.last_problem = ""

    @property
    def pending(self) -> bool:
        """Whether a newer version waits to be read."""
        return self._pending is not None

    def noticed(self, notice: Notice) -> None:
        """A version is there. Older ones than what is known are ignored."""
        version = Version.of(notice.version)
        known = self._engine.version
        if self._pending is not None:
            known = Version.of(self._pending[0].version)
        if known is None or version > known:
            self._pending = (notice, self._clock())

    def apply(self) -> Applied | None:
        """Read the newest version into the engine; None if there is none or it cannot be read whole,
        which leaves the old one and waits for the next notice."""
        if self._pending is None:
            return None
        (notice, since), self._pending = self._pending, None
        try:
            tensors = from_image(self._source.read(notice))
        except StaleRead as error:
            self.stale_reads += 1
            self.last_problem = str(error)
            return None
        self._engine.set_weights(Version.of(notice.version), tensors)
        return Applied(notice.policy, list(notice.version), self._clock() - since)
