"""What an actor committed and what the store answered, for `rollbus audit`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollbus_core.lines import LineFile


class SentLog:
    """Appends to ``sent-<producer>.jsonl`` of ``folder``.

    A chunk is there before it is sent: one without an answer was never acknowledged, but may be applied.
    """

    def __init__(self, folder: Path, producer: str) -> None:
        self._file = LineFile(folder / f"sent-{producer}.jsonl")

    def sent(self, slice: str, ticket: int, record: Mapping[str, Any]) -> None:
        """A chunk (`rollbus_core.audit.chunk_record`) is about to be committed."""
        self._file.put({"ticket": ticket, "slice": slice, **record})

    def answered(self, ticket: int, sequence: int, reason: str) -> None:
        """The store took it as ``sequence``, or did not, for ``reason``."""
        self._file.put({"answer": ticket, "sequence": sequence, "reason": reason, "time": time.monotonic()})

    def flush(self) -> None:
        """Write what a full disk had no room for; called in every turn, for the next commit may be far."""
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
