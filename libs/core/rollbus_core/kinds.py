"""What lies at a path: a file, a folder or something else, asked before it is opened.

A folder in place of a file fails wherever it is opened first; a FIFO is waited for without an end. Links
count as what they lead to.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

FILE, FOLDER, SOCKET = "a file", "a folder", "a socket"
_FIFO, _DEVICE = "a FIFO", "a device"
_KINDS = {
    stat.S_IFREG: FILE, stat.S_IFDIR: FOLDER, stat.S_IFSOCK: SOCKET, stat.S_IFIFO: _FIFO,
    stat.S_IFCHR: _DEVICE, stat.S_IFBLK: _DEVICE,
}  # fmt: skip


def kind_of(path: Path) -> str:
    """What ``path`` is; "" if nothing is there."""
    try:
        return _KINDS.get(stat.S_IFMT(os.stat(path).st_mode), "something else")
    except FileNotFoundError:
        return f"a link to {os.readlink(path)}, which is not there," if path.is_symlink() else ""
    except NotADirectoryError:  # what it would be in is told of itself
        return ""
    except OSError as error:
        return f"out of reach ({error.strerror})"


def unlike(path: Path, wanted: str) -> str:
    """What ``path`` is instead of ``wanted`` (`FILE`, `FOLDER`, `SOCKET`), for people; "" if nothing else.

    A link to a file that is not there yet is one, if it can be made there.
    """
    kind = kind_of(path)
    if kind in ("", wanted) or (wanted == FILE and _to_be_made(path)):
        return ""
    return f"{path} is {kind} where {wanted} has to be"


def strange_files(folder: Path, names: re.Pattern[str]) -> Iterator[Path]:
    """What in ``folder`` has one of the ``names`` and is no file; of thousands of files none is looked at."""
    if kind_of(folder) != FOLDER:
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            if names.fullmatch(entry.name) and not entry.is_file():
                yield Path(entry.path)


def _to_be_made(path: Path) -> bool:
    target = Path(os.path.realpath(path))
    return path.is_symlink() and not os.path.lexists(target) and target.parent.is_dir()
