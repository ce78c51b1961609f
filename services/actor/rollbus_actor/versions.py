"""From a notice to weights that act: newest wins, and only whole versions are taken."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from rollbus_actor.engines.base import InferenceEngine
from rollbus_core.version import Version
from rollbus_core.weights.age import age_s
from rollbus_core.weights.base import WeightSource
from rollbus_wire.errors import SpecError, StaleRead
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
        #: Versions that lacked a tensor, or had one of another name or shape.
        self.refused = 0
        #: Why the newest version does not act; "" if it does.
        self.last_problem = ""
        #: From the learner's publish to acting here, of the version that acts; None before the first one.
        self.latency_ms: float | None = None

    @property
    def pending(self) -> bool:
        """Whether a newer version waits to be read."""
        return self._pending is not None

    @property
    def due(self) -> bool:
        """Whether a newer version can be read now."""
        return self._readable() is not None

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
        which leaves the old one and waits for the next notice, or if it is still on its way here.

        Raises `StaleRead` if the version changed while the engine took it: the engine then holds a
        mixture, and its process must end.
        """
        notice, known = self._readable(), self._engine.version
        if notice is None or self._pending is None:
            return None
        wanted, since = self._pending
        if Version.of(notice.version) >= Version.of(wanted.version):
            self._pending = None
        with contextlib.ExitStack() as stack:
            try:
                tensors = stack.enter_context(self._source.open(notice))
            except StaleRead as error:
                self.stale_reads += 1
                self.last_problem = str(error)
                return None
            try:
                self._engine.set_weights(Version.of(notice.version), tensors)
            except SpecError as error:
                # Names or shapes differ; nothing was copied. Without any version there is no way on.
                if known is None:
                    raise
                self.refused += 1
                self.last_problem = str(error)
                return None
            self.last_problem = ""
        self.latency_ms = 1000.0 * age_s(notice)
        return Applied(wanted.policy, list(notice.version), self._clock() - since)

    def _readable(self) -> Notice | None:
        if self._pending is None:
            return None
        notice, known = self._source.local(self._pending[0]), self._engine.version
        return (
            notice if notice is not None and (known is None or Version.of(notice.version) > known) else None
        )

    def close(self) -> None:
        """Nothing more will be read."""
        self._source.close()

    def numbers(self) -> dict[str, float]:
        """For heartbeats."""
        latency = {} if self.latency_ms is None else {"weights_latency_ms": self.latency_ms}
        return {"stale_reads": self.stale_reads, "refused_versions": self.refused, **latency}
