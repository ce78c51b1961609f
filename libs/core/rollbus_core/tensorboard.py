"""TensorBoard event files, written by a thread that also does the slow import. No TensorFlow."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_CLOSE_S = 3.0


class EventFiles:
    """Scalars of one run. The thread starts at the first `put`."""

    def __init__(self, folder: Path, on_missing: Callable[[str], None]) -> None:
        self._folder, self._on_missing = folder, on_missing
        self._rows: queue.SimpleQueue[Mapping[str, Any] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def put(self, row: Mapping[str, Any]) -> None:
        """The numbers of ``row`` at step ``env_steps``; never waits."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._write, name="tensorboard", daemon=True)
            self._thread.start()
        self._rows.put(row)

    def close(self) -> None:
        """Write out what is left, within a bounded time."""
        if self._thread is not None:
            self._rows.put(None)
            self._thread.join(_CLOSE_S)

    def _write(self) -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError:
            self._on_missing(
                "tensorboard is not installed: metrics.jsonl only; pip install 'rollbus[records]'"
            )
            return
        writer = None
        while (row := self._rows.get()) is not None:
            values = [
                Summary.Value(tag=name, simple_value=float(value))
                for name, value in row.items()
                if isinstance(value, int | float) and name not in ("time", "env_steps")
            ]
            event = Event(wall_time=row["time"], step=int(row["env_steps"]), summary=Summary(value=values))
            # Rows for which a full disk has no room are missing; what follows goes to another file.
            with contextlib.suppress(OSError):
                begun, writer = writer or EventFileWriter(str(self._folder)), None
                begun.add_event(event)
                writer = begun
        if writer is not None:
            with contextlib.suppress(OSError):
                writer.close()
