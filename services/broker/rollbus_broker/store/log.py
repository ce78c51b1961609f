"""The store's log: append-only records of uint32 length, uint32 CRC-32 and msgpack.

What `flush` has returned for survives the process; with ``fsync`` also the machine.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgpack

from rollbus_core.lines import NO_ROOM

_HEAD = struct.Struct("<II")


class Log:
    """One log file. Opening it reads it whole and cuts a torn tail."""

    def __init__(self, path: Path, *, fsync: bool = False) -> None:
        self.path, self._fsync = path, fsync
        self._pending: list[bytes] = []
        #: Records found at the start, and bytes cut from the tail.
        self.records, self.cut_bytes = _read(path)
        self._file = open(path, "ab", buffering=0)
        if self.cut_bytes:
            self._file.truncate(path.stat().st_size - self.cut_bytes)
        self.num_bytes = path.stat().st_size

    def append(self, record: dict[str, Any]) -> None:
        """Add a record; it is written by the next `flush`."""
        self._pending.append(_pack(record))

    def flush(self) -> bool:
        """Write what was added; False if the disk is full: then nothing is written and it waits."""
        if not self._pending:
            return True
        data = b"".join(self._pending)
        try:
            _write(self._file.fileno(), data)
            if self._fsync:
                os.fdatasync(self._file.fileno())
        except OSError as error:
            self._file.truncate(self.num_bytes)
            if error.errno not in NO_ROOM:
                raise
            self._pending = [data]
            return False
        self._pending = []
        self.num_bytes += len(data)
        return True

    def rewrite(self, records: Iterable[dict[str, Any]]) -> bool:
        """Replace everything, what was added included; a crash leaves the old log or the new one.

        False if the disk is full: then the old one stays and what was added waits.
        """
        partial = self.path.with_suffix(".partial")
        try:
            with open(partial, "wb") as file:
                for record in records:
                    file.write(_pack(record))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            partial.unlink(missing_ok=True)
            if error.errno not in NO_ROOM:
                raise
            return False
        self._pending = []
        os.replace(partial, self.path)
        self._file.close()
        self._file = open(self.path, "ab", buffering=0)
        self.num_bytes = self.path.stat().st_size
        return True

    def close(self) -> None:
        """Write what is left and close."""
        self.flush()
        self._file.close()


def _pack(record: dict[str, Any]) -> bytes:
    body: bytes = msgpack.packb(record, use_bin_type=True)
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def read_records(path: Path) -> list[dict[str, Any]]:
    """The whole records of a log that another process may be writing."""
    return _read(path)[0]


def _read(path: Path) -> tuple[list[dict[str, Any]], int]:
    """(records, bytes after the last whole record)."""
    if not path.exists():
        return [], 0
    data = path.read_bytes()
    records, start = [], 0
    while start + _HEAD.size <= len(data):
        length, checksum = _HEAD.unpack_from(data, start)
        body = data[start + _HEAD.size : start + _HEAD.size + length]
        if len(body) < length or zlib.crc32(body) != checksum:
            break
        records.append(msgpack.unpackb(body, raw=False, strict_map_key=False))
        start += _HEAD.size + length
    return records, len(data) - start
