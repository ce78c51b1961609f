"""Large observations go to an actor through memory that both map; the tick says where.

A slab belongs to one fence and holds two cells, written in turn: a tick is outstanding until its act, and the
actor has copied what it keeps of it before it answers the next one. A holder that lost its fence keeps its
map of the old slab, in which nothing changes any more. docs/decisions/0009.
"""

from __future__ import annotations

import secrets
import struct
from pathlib import Path

import numpy as np

from rollbus_core.columns import Layout, observation_layout
from rollbus_core.slabs import OBSERVATIONS, SlabFolder
from rollbus_wire import shm
from rollbus_wire.errors import SharedMemoryFull
from rollbus_wire.messages import Arrays
from rollbus_wire.spec import EnvSpec

#: Observations of a slice smaller than this travel in the tick.
SHARED_BYTES = 64 << 10
NUM_CELLS = 2
_TICK = struct.Struct("<Q")


class SharedFrames:
    """The slab of one fence; ``number`` names it."""

    def __init__(self, folder: SlabFolder, number: int, layout: Layout) -> None:
        """Raises `SharedMemoryFull`."""
        self._folder, self.number, self._layout = folder, number, layout
        self.num_bytes = NUM_CELLS * layout.cell_bytes
        self._map = folder.create(number, self.num_bytes)
        self._cells = [layout.views(self._map, i * layout.cell_bytes) for i in range(NUM_CELLS)]

    def put(self, tick: int, obs: Arrays) -> int:
        """Write ``obs`` [R, ...] of the tick with this number; the byte where its cell begins."""
        index = tick % NUM_CELLS
        for key, cell in self._cells[index].items():
            array = obs[key]
            np.copyto(cell[: len(array)], array)
        place = index * self._layout.cell_bytes
        _TICK.pack_into(self._map, place, tick)
        return place

    def close(self) -> None:
        """Unlink it; who maps it keeps it."""
        self._folder.remove(self.number)


class SharedMemory:
    """Makes the slabs of the hub with this ``index`` in ``folder``, None: it has none.

    A slab's number is (index, process, count): what an earlier process of the same hub left is known by it.
    """

    def __init__(self, folder: Path | None, index: int) -> None:
        self._slabs = None if folder is None else SlabFolder(folder, OBSERVATIONS)
        self._number = index << 40 | secrets.randbits(20) << 20
        for left in [] if folder is None else folder.glob(f"{OBSERVATIONS}-*"):
            if left.name.rpartition("-")[2].isdigit() and int(left.name.rpartition("-")[2]) >> 40 == index:
                left.unlink(missing_ok=True)

    def offer(self, spec: EnvSpec, num_rows: int, nonce: str) -> SharedFrames | None:
        """A slab for the actor that wrote ``nonce``; None if it is not worth it, or it sees other memory."""
        layout = observation_layout({k: (i.dtype, i.shape) for k, i in spec.observation.items()}, num_rows)
        if self._slabs is None or not nonce or layout.cell_bytes < SHARED_BYTES:
            return None
        if not shm.same_memory(nonce, self._slabs.folder):
            return None
        self._number += 1
        try:
            return SharedFrames(self._slabs, self._number, layout)
        except SharedMemoryFull:
            return None
