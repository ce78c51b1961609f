"""Slab ids, offsets, lengths and generations of any value into what resolves them: a view, or `PeerLost`."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import numpy as np
from fuzz_services import PeerLost, folder
from harness import INTEGERS, Bytes

from rollbus_actor.shared import SharedMemory, SharedObservations
from rollbus_core.columns import Layout, observation_layout
from rollbus_core.slabs import OBSERVATIONS, SlabFolder
from rollbus_wire import shm
from rollbus_wire.errors import SpecError
from rollbus_wire.messages import Tick
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec

SPEC = EnvSpec("toy", {"x": ArraySpec("float32", (4,))}, ActionSpec("discrete", num=[2]))
_folder = folder()
_slabs = SlabFolder(_folder)
_slabs.create(7, 4096)
_cell = observation_layout({"x": ("float32", (4,))}, 2).cell_bytes
_made = SlabFolder(_folder, OBSERVATIONS).create(3, 2 * _cell)
_none = np.zeros(0, np.int32)


def fuzz(data: bytes) -> None:
    source = Bytes(data)
    slab, length, offset, cell = (_number(source) for _ in range(4))
    try:
        view = memoryview(_slabs.cell(slab, length, offset, max(1, cell)))[offset : offset + max(1, cell)]
        assert len(view) == max(1, cell)
        view.release()
    except PeerLost:
        pass
    try:
        shared: SharedObservations = SharedMemory(_folder).open(slab, length, SPEC, 2)
        rows = np.zeros(source.number(5), np.int32)
        message = Tick("s", 1, offset, rows, {}, *[_none] * 8, {}, *[_none] * 4, place=cell)
        if shared.take(message):
            assert message.obs["x"].shape == (len(rows), 4)
    except PeerLost:
        pass
    _layout(source)
    shm.same_memory(source.rest().decode("latin1"), _folder)


def _number(source: Bytes) -> int:
    if source.number(2):
        return (0, 3, 7, 64, _cell, 2 * _cell, 4096)[source.number(7)]
    if source.number(2):
        return INTEGERS[source.number(len(INTEGERS))]
    return struct.unpack("<q", source.take(8))[0]


def _layout(source: Bytes) -> None:
    data = {
        "num_decisions": source.value(0), "num_rows": source.value(0), "num_finals": source.value(0),
        "num_history": 0, "columns": [["a", source.value(0), [source.value(0), 2], 64], source.value()],
    }  # fmt: skip
    if source.number(2):
        data.update(num_decisions=2, num_rows=2, num_finals=source.number(3))
        data["columns"] = [["a", "float32", [source.value(0), source.value(0)], 64]]
    try:
        layout = Layout.from_data(data)
    except SpecError:
        return
    if layout.cell_bytes <= 4096:
        layout.views(bytearray(layout.cell_bytes))


def seeds() -> Iterable[bytes]:
    yield bytes([1, 2, 1, 6, 1, 0, 1, 3])
    yield bytes([1, 1, 1, 5, 1, 0, 1, 0])
    yield bytes([0, 1, 4, 0, 1, 5])
    yield bytes(16) + b"nonce-../../etc=00"
