"""Files that may come from a stranger, and so may be of any length."""

from __future__ import annotations

import os
from typing import IO, AnyStr


def read_at_most(file: IO[AnyStr], limit: int) -> AnyStr:
    """All of ``file``; of one that has more than ``limit`` bytes or characters, ``limit + 1`` of them.

    ``file.read(limit)`` would take as much memory as the limit first, at every call.
    """
    return file.read(min(os.fstat(file.fileno()).st_size, limit) + 1)
