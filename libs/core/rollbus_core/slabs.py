"""Slab files: plain files that are mapped, in the run's 0700 folder.

Only their owner (the store; a hub for the observations of its ticks) creates and unlinks them.
Everybody else maps what a message names: (slab id, size, offset, generation), never a path.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from rollbus_core.memory import room_for
from rollbus_wire.errors import PeerLost, SharedMemoryFull

#: All pages are entered at once; one by one, at their first use, they cost more. Linux only.
_FLAGS = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
#: Prefix of the slabs that hubs own.
OBSERVATIONS = "observations"


class SlabFolder:
    """Maps of the slab files of one folder, opened once each. ``prefix`` tells owners apart."""

    def __init__(self, folder: Path, prefix: str = "slab") -> None:
        self.folder, self.prefix = folder, prefix
        self._maps: dict[int, mmap.mmap] = {}

    def path(self, slab: int) -> Path:
        """The file of ``slab``."""
        return self.folder / f"{self.prefix}-{slab}"

    def create(self, slab: int, num_bytes: int) -> mmap.mmap:
        """Make and map a slab. Its pages are taken now: a full memory is an error here, not a bus error."""
        descriptor = os.open(self.path(slab), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with room_for(f"a slab of {num_bytes >> 10} KiB", self.folder):
                os.posix_fallocate(descriptor, 0, num_bytes)
                self._maps[slab] = mmap.mmap(descriptor, num_bytes, _FLAGS)
        except (OSError, SharedMemoryFull):
            self.path(slab).unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        return self._maps[slab]

    def open(self, slab: int, num_bytes: int) -> mmap.mmap:
        """Map an existing slab, readable and writable."""
        found = self._maps.get(slab)
        if found is not None and len(found) == num_bytes:
            return found
        if slab < 0 or num_bytes < 1:
            raise PeerLost(f"there is no slab {slab} of {num_bytes} bytes")
        try:
            descriptor = os.open(self.path(slab), os.O_RDWR | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise PeerLost(f"slab {slab} is gone: the store freed it or was replaced") from None
        try:
            size = os.fstat(descriptor).st_size
            if size < num_bytes:
                raise PeerLost(f"slab {slab} has {size} bytes, {num_bytes} are named")
            self._maps[slab] = mmap.mmap(descriptor, num_bytes, _FLAGS)
        finally:
            os.close(descriptor)
        return self._maps[slab]

    def cell(self, slab: int, num_bytes: int, offset: int, cell_bytes: int) -> mmap.mmap:
        """The map of ``slab`` for the cell at byte ``offset``: what a message names, checked.

        Raises `PeerLost` if the slab is gone, or no cell of ``cell_bytes`` begins there.
        """
        if not (0 <= offset <= num_bytes - cell_bytes) or offset % cell_bytes:
            raise PeerLost(f"slab {slab} of {num_bytes} bytes has no cell of {cell_bytes} at byte {offset}")
        return self.open(slab, num_bytes)

    def forget(self, slab: int) -> None:
        """Drop the map (it is closed when the last view on it goes)."""
        self._maps.pop(slab, None)

    def remove(self, slab: int) -> None:
        """Owner only: drop the map and unlink the file."""
        self.forget(slab)
        self.path(slab).unlink(missing_ok=True)
