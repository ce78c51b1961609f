"""Observations that a hub of the same memory domain puts into a slab instead of its ticks."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

from rollbus_core.columns import observation_layout
from rollbus_core.slabs import OBSERVATIONS, SlabFolder
from rollbus_wire import shm
from rollbus_wire.errors import PeerLost
from rollbus_wire.messages import Tick
from rollbus_wire.spec import EnvSpec

_TICK = struct.Struct("<Q")


class SharedMemory:
    """This actor's proof that it sees ``folder``, and its maps; None: it shares nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._slabs = None if folder is None else SlabFolder(folder, OBSERVATIONS)
        self._nonce = ""

    def nonce(self) -> str:
        """What `Attach` says; written at the first use."""
        if self._slabs is not None and not self._nonce:
            self._nonce = shm.write_nonce(self._slabs.folder)
        return self._nonce

    def open(self, slab: int, num_bytes: int, spec: EnvSpec, num_rows: int) -> SharedObservations:
        """The slab of one fence. Raises `PeerLost` if it is not there, and offers no memory from then on."""
        if self._slabs is None:
            raise PeerLost("a hub names a slab for observations, but this actor offered no memory")
        try:
            buffer = self._slabs.open(slab, num_bytes)
        except PeerLost:
            self.close()
            self._slabs = None
            raise
        # Only the session keeps the map: it is closed with it.
        self._slabs.forget(slab)
        return SharedObservations(buffer, spec, num_rows)

    def close(self) -> None:
        """Take the proof away."""
        if self._slabs is not None and self._nonce:
            shm.remove_nonce(self._nonce, self._slabs.folder)
            self._nonce = ""


class SharedObservations:
    """The observations of one fence in a hub's slab."""

    def __init__(self, buffer: Any, spec: EnvSpec, num_rows: int) -> None:
        self._buffer = buffer
        shapes = {key: (item.dtype, item.shape) for key, item in spec.observation.items()}
        self._layout, self._num_rows = observation_layout(shapes, num_rows), num_rows

    def take(self, tick: Tick) -> bool:
        """Put views of the cell into ``tick``; False if the cell does not hold this tick."""
        place, size, rows = tick.place, self._layout.cell_bytes, tick.rows
        if place < 0 or place % size or place + size > len(self._buffer):
            return False
        if rows.ndim != 1 or rows.size > self._num_rows:
            return False
        if _TICK.unpack_from(self._buffer, place)[0] != tick.tick:
            return False
        num = rows.size
        views: dict[str, np.ndarray] = self._layout.views(self._buffer, place)
        tick.obs = {key: view[:num] for key, view in views.items()}
        return True
