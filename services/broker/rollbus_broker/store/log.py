"""The store's log: append-only records of uint32 length, uint32 CRC-32 and msgpack.

What `flush` has returned for survives the process; with ``fsync`` also the machine. Bytes that are no record
are a torn tail if no whole record follows, else damage: what follows is read, and the file is kept aside.
"""

from __future__ import annotations

import os
import shutil
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack

from rollbus_core.checkpoints import sync
from rollbus_core.lines import is_no_room

_HEAD = struct.Struct("<II")


#: First bytes of a msgpack map with entries.
_MAPS = frozenset({*range(0x81, 0x90), 0xDE, 0xDF})


@dataclass
class Contents:
    """What a log file holds."""

    records: list[dict[str, Any]] = field(default_factory=list)
    #: Bytes after the last whole record.
    cut_bytes: int = 0
    #: (offset, bytes) of what is no record and has whole records after it.
    damage: list[tuple[int, int]] = field(default_factory=list)

    @property
    def lost_bytes(self) -> int:
        """Bytes that held records once, or may have."""
        return self.cut_bytes + sum(size for _, size in self.damage)


class Log:
    """One log file. Opening it reads it whole, cuts a torn tail and keeps a damaged file aside."""

    def __init__(self, path: Path, *, fsync: bool = False) -> None:
        self.path, self.fsync = path, fsync
        self._pending: list[bytes] = []
        self._packer = msgpack.Packer(use_bin_type=True)
        #: What was found at the start.
        self.found = _read(path)
        #: A copy of the damaged file, if it was damaged.
        unreadable = self.found.damage or (self.found.cut_bytes and not self.found.records)
        self.kept = _keep_aside(path) if unreadable else None
        self._file = open(path, "ab", buffering=0)
        if self.found.cut_bytes:
            self._file.truncate(path.stat().st_size - self.found.cut_bytes)
        self.num_bytes = path.stat().st_size

    def append(self, record: dict[str, Any]) -> None:
        """Add a record; it is written by the next `flush`."""
        self._pending.append(_pack(self._packer, record))

    def flush(self) -> bool:
        """Write what was added; False if the disk is full: then nothing is written and it waits."""
        if not self._pending:
            return True
        data = b"".join(self._pending)
        try:
            _write(self._file.fileno(), data)
            if self.fsync:
                os.fdatasync(self._file.fileno())
        except OSError as error:
            self._file.truncate(self.num_bytes)
            if not is_no_room(error):
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
                    file.write(_pack(self._packer, record))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            partial.unlink(missing_ok=True)
            if not is_no_room(error):
                raise
            return False
        self._pending = []
        os.replace(partial, self.path)
        sync(self.path.parent)
        self._file.close()
        self._file = open(self.path, "ab", buffering=0)
        self.num_bytes = self.path.stat().st_size
        return True

    def close(self) -> None:
        """Write what is left and close."""
        self.flush()
        self._file.close()


def _pack(packer: msgpack.Packer, record: dict[str, Any]) -> bytes:
    body: bytes = packer.pack(record)
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _keep_aside(path: Path) -> Path | None:
    """Copy ``path`` to the first free ``<name>.damaged-N``; None if there is no room for it."""
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    try:
        shutil.copyfile(path, aside)
    except OSError as error:
        aside.unlink(missing_ok=True)
        if not is_no_room(error):
            raise
        return None
    return aside


def read_records(path: Path) -> list[dict[str, Any]]:
    """The whole records of a log that another process may be writing."""
    return _read(path).records


def _read(path: Path) -> Contents:
    found = Contents()
    if not path.exists():
        return found
    data = path.read_bytes()
    start = lost = 0
    while start < len(data):
        record, size = _record(data, start)
        if record is None:
            start += 1
            lost += 1
            continue
        if lost:
            found.damage.append((start - lost, lost))
        found.records.append(record)
        start, lost = start + size, 0
    found.cut_bytes = lost
    return found


def _record(data: bytes, start: int) -> tuple[dict[str, Any] | None, int]:
    """(record, bytes) of the whole record at ``start``, or (None, 0)."""
    body = start + _HEAD.size
    if body >= len(data) or data[body] not in _MAPS:
        return None, 0
    length, checksum = _HEAD.unpack_from(data, start)
    if length > len(data) - body or zlib.crc32(memoryview(data)[body : body + length]) != checksum:
        return None, 0
    try:
        record = msgpack.unpackb(data[body : body + length], raw=False, strict_map_key=False)
    except ValueError:
        return None, 0
    return (record, _HEAD.size + length) if isinstance(record, dict) else (None, 0)
