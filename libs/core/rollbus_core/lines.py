"""Files of lines that a full disk delays and never tears: logs, metrics, audits."""

from __future__ import annotations

import errno
import json
import os
import time
from collections import deque
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

#: Errors of a disk that has no room now and may have some later.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
#: While there is no room, it is tried again this often.
RETRY_S = 0.5
#: Read at once, from the end of a file.
BLOCK = 65_536


def is_no_room(error: BaseException) -> bool:
    """Whether the disk had no room for something."""
    return isinstance(error, OSError) and error.errno in NO_ROOM


class LineFile:
    """Appends lines to ``path``, each at once and whole.

    While the disk is full they wait in memory, at most ``max_waiting`` of them; then the oldest are given
    up and counted in ``lost``. 0: all wait. ``after``: files whose lines are the causes of lines here; while
    one of theirs waits, all here do.
    """

    def __init__(self, path: Path, *, max_waiting: int = 0, after: Collection[LineFile] = ()) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        self._cut_half_line()
        self._max_waiting, self._retry_at, self._after = max_waiting, 0.0, after
        self._waiting: deque[bytes] = deque()
        self.lost = 0

    @property
    def waiting(self) -> int:
        """Lines that the disk has no room for."""
        return len(self._waiting)

    def put(self, record: Mapping[str, Any]) -> None:
        """Append ``record`` as a line of JSON."""
        self.write(json.dumps(record))

    def write(self, line: str) -> None:
        """Append ``line``."""
        self._waiting.append(line.encode() + b"\n")
        if self._max_waiting and len(self._waiting) > self._max_waiting:
            self._waiting.popleft()
            self.lost += 1
        self.flush()

    def flush(self, *, force: bool = False) -> None:
        """Write what waits, if there is room for it."""
        if not self._waiting or (time.monotonic() < self._retry_at and not force):
            return
        while self._waiting:
            if any(file.waiting for file in self._after) or not self._append(self._waiting[0]):
                self._retry_at = time.monotonic() + RETRY_S
                return
            self._waiting.popleft()

    def close(self) -> None:
        """Write what is left, if there is room, and close."""
        self.flush(force=True)
        os.close(self._file)

    def _cut_half_line(self) -> None:
        """A writer that was killed as the disk filled up may have left one."""
        size = os.fstat(self._file).st_size
        end, tail = size, b""
        while end and b"\n" not in tail:
            start = max(0, end - BLOCK)
            end, tail = start, os.pread(self._file, end - start, start) + tail
        whole = end + tail.rfind(b"\n") + 1
        if whole < size:
            os.ftruncate(self._file, whole)

    def _append(self, data: bytes) -> bool:
        """Whether all of it is there; if not, nothing is. One process writes to one file."""
        size = os.fstat(self._file).st_size
        try:
            if os.write(self._file, data) == len(data):
                return True
        except OSError as error:
            if not is_no_room(error):
                raise
        os.ftruncate(self._file, size)
        return False
