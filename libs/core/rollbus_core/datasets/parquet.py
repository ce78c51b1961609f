"""Parquet files that are written in parts, each under a temporary name until it is whole."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollbus_core.datasets import files

#: Rows are kept until they are this large, then written as one row group; memory is bounded by it.
GROUP_BYTES = 16 << 20
#: A file of this size is closed and the next one begun.
FILE_BYTES = 100 << 20


class ParquetFiles:
    """The files of one kind, ``pattern`` with (chunk, file); ``before`` are those that exist."""

    def __init__(self, folder: Path, pattern: str, before: Mapping[str, Any]) -> None:
        self.folder, self.pattern = folder, pattern
        #: Of the file that is written now.
        self.number = 0
        while self._name(self.number) in before:
            self.number += 1
        self._writer: Any = None
        self._tables: list[Any] = []
        self._waiting_bytes = 0
        self._closed: list[str] = []

    def add(self, columns: Mapping[str, Any]) -> int:
        """Some rows; the number of the file that they go to."""
        import pyarrow as pa

        table = pa.table(_typed(columns))
        self._tables.append(table)
        self._waiting_bytes += table.nbytes
        number = self.number
        if self._waiting_bytes >= GROUP_BYTES:
            self._write()
            if self._unfinished(number).stat().st_size >= FILE_BYTES:
                self._close()
        return number

    def finish(self) -> dict[str, dict[str, Any]]:
        """Give all files their names; size and sha256 of each."""
        if self._tables:
            self._write()
        if self._writer is not None:
            self._close()
        found = {}
        for name in self._closed:
            path = self.folder / name
            unfinished = path.with_name(path.name + files.UNFINISHED)
            files.sync(unfinished)
            unfinished.rename(path)
            files.sync(path.parent)
            found[name] = {"bytes": path.stat().st_size, "sha256": files.digest_of(path)}
        return found

    def discard(self) -> None:
        """Remove what was written."""
        if self._writer is not None:
            self._close()
        for name in self._closed:
            path = self.folder / name
            path.with_name(path.name + files.UNFINISHED).unlink(missing_ok=True)
        self._closed, self._tables = [], []

    def _name(self, number: int) -> str:
        return self.pattern.format(*files.place(number))

    def _unfinished(self, number: int) -> Path:
        path = self.folder / self._name(number)
        return path.with_name(path.name + files.UNFINISHED)

    def _write(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pa.concat_tables(self._tables)
        self._tables, self._waiting_bytes = [], 0
        if self._writer is None:
            path = self._unfinished(self.number)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(path, table.schema, compression="snappy")
        self._writer.write_table(table)

    def _close(self) -> None:
        self._writer.close()
        self._writer = None
        self._closed.append(self._name(self.number))
        self.number += 1


def _typed(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Lists of plain values with the types that all their rows have, also where the first is null."""
    import pyarrow as pa

    types = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}
    nullable = {"success": pa.bool_(), "tasks": pa.list_(pa.string())}
    return {
        name: pa.array(column, nullable.get(name) or types[type(column[0])])
        if isinstance(column, list)
        else column
        for name, column in columns.items()
    }


def tasks_file(tasks: Mapping[str, int]) -> bytes:
    """meta/tasks.parquet: ``task_index`` under an index of task texts, as pandas writes it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table(
        {"task_index": pa.array(list(tasks.values()), pa.int64()), "task": pa.array(list(tasks), pa.string())}
    )
    column = {"pandas_type": "int64", "numpy_type": "int64", "metadata": None}
    text = {"pandas_type": "unicode", "numpy_type": "object", "metadata": None}
    pandas = {
        "index_columns": ["task"], "column_indexes": [],
        "columns": [
            {"name": "task_index", "field_name": "task_index", **column},
            {"name": "task", "field_name": "task", **text},
        ],
        "pandas_version": "2.0.0",
    }  # fmt: skip
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata({"pandas": json.dumps(pandas)}), sink)
    return bytes(sink.getvalue().to_pybytes())
