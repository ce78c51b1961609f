"""Chunks that the store gave up after it had acknowledged them, for `rollbus audit`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollbus_broker.store.tables import Table
from rollbus_core.lines import LineFile


class DropLog:
    """Appends to ``dropped.jsonl`` of ``folder``; None: nobody audits this run.

    What is lost with the log at ``log_path`` is also said to ``to``, the service's log, and in `notice`.
    """

    def __init__(self, folder: Path | None, log_path: Path, to: Any) -> None:
        self._log_path, self._to = log_path, to
        #: A line for people.
        self.notice = ""
        self._file = LineFile(folder / "dropped.jsonl") if folder is not None else None

    def put(self, table: str, sequence: int, reason: str, consumed: bool) -> None:
        """A chunk is given up; see `Ledger`."""
        if self._file is not None:
            record = {"table": table, "sequence": sequence, "reason": reason, "consumed": consumed}
            self._file.put(record)

    def lost(self, table: str, first: int, last: int) -> None:
        """All chunks of these numbers that the store does not know are lost with its log."""
        self._to.warning("store log lost its end", file=str(self._log_path), table=table, after=first - 1)
        self.notice = (
            f"{self._log_path} lost its end: chunks of table {table} that were not learned from are lost "
            "(damaged in rollbus audit), numbers go on in another range"
        )
        if self._file is not None:
            self._file.put({"table": table, "first": first, "last": last, "reason": "damaged"})

    def close(self, tables: Mapping[str, Table]) -> None:
        """The run ends; what is still in ``tables`` is left there."""
        if self._file is None:
            return
        for name, table in tables.items():
            for chunk in table.chunks():
                self.put(name, chunk.sequence, "left", False)
        self._file.close()
