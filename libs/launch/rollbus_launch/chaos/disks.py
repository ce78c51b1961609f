"""Small file systems of the run's own, so that they can be filled without harm to anybody else."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from pathlib import Path

_CLONE_NEWNS = 0x20000


def private_mounts() -> bool:
    """From now on mounts of this process and its children are theirs alone; False without the right to."""
    if os.geteuid() != 0 or ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS) != 0:
        return False
    return subprocess.run(["mount", "--make-rprivate", "/"], capture_output=True).returncode == 0


class Disk:
    """A file system of ``num_bytes`` in memory, mounted on ``folder``."""

    def __init__(self, folder: Path, num_bytes: int) -> None:
        self.folder, self._ballast = folder, folder / ".ballast"
        folder.mkdir(parents=True, exist_ok=True)
        self._below = os.open(folder, os.O_PATH | os.O_DIRECTORY)
        options = f"size={num_bytes},mode=0700"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)

    def fill(self) -> None:
        """Take all room that is left; called again, what was freed meanwhile."""
        descriptor = os.open(self._ballast, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            for size in (1 << 20, 1 << 12):
                with contextlib.suppress(OSError):
                    while True:
                        os.write(descriptor, bytes(size))
        finally:
            os.close(descriptor)

    def relieve(self) -> None:
        """Give the room back."""
        self._ballast.unlink(missing_ok=True)

    def close(self, *, keep: bool) -> None:
        """Unmount; with ``keep`` its content goes to the folder below."""
        self.relieve()
        if keep:
            shutil.copytree(self.folder, f"/proc/self/fd/{self._below}", symlinks=True, dirs_exist_ok=True)
        os.close(self._below)
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True)
