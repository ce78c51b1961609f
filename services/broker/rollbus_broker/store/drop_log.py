"""Chunks that the store gave up after it had acknowledged them, for `rollbus audit`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rollbus_broker.store.tables import Table
from rollbus_core.lines import LineFile


class DropLog:
    """Appends to ``dropped.jsonl`` of ``folder``; None: nobody audits this run."""

    def __init__(self, folder: Path | None) -> None:
        self._file = LineFile(folder / "dropped.jsonl") if folder is not None else None

    def put(self, table: str, sequence: int, reason: str, consumed: bool) -> None:
        """A chunk is given up; see `Ledger`."""
        if self._file is not None:
            record = {"table": table, "sequence": sequence, "reason": reason, "consumed": consumed}
            self._file.put(record)

    def close(self, tables: Mapping[str, Table]) -> None:
        """The run ends; what is still in ``tables`` is left there."""
        if self._file is None:
            return
        for name, table in tables.items():
            for chunk in table.chunks():
                self.put(name, chunk.sequence, "left", False)
        self._file.close()
