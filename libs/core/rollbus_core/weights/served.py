"""A slot that is published in shared memory and served to other hosts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rollbus_core.weights.base import Weights
from rollbus_core.weights.server import ServerThread
from rollbus_core.weights.shm import WeightReader, WeightWriter
from rollbus_wire.link import Link
from rollbus_wire.messages import Notice


class ServedWriter:
    """A learner's end (`base.WeightSink`) whose notices say where other hosts fetch."""

    def __init__(self, writer: WeightWriter, bind: Callable[[], Link]) -> None:
        """``bind`` makes the link that others dial."""
        self._writer = writer
        self.server = ServerThread(WeightReader(writer.prefix), bind)

    @property
    def publishes_skipped(self) -> int:
        """Publishes that found no free buffer."""
        return self._writer.publishes_skipped

    def publish(self, version: Sequence[int], weights: Weights) -> Notice | None:
        """As `WeightWriter.publish`; raises what ended the serving thread, if it has ended."""
        notice = self._writer.publish(version, weights)
        if notice is not None:
            notice.stream = self.server.endpoint
            self.server.offer(notice)
        return notice

    def close(self) -> None:
        """Stop serving; the buffers stay readable."""
        self.server.close()
        self._writer.close()
