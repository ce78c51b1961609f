"""A byte of a committed chunk changes before it is learned from."""

from __future__ import annotations

import struct

from rollbus_broker.store.log import read_records
from rollbus_core.columns import HEADER_BYTES
from rollbus_launch.chaos.schedule import Fault
from rollbus_launch.chaos.world import World

_GENERATION = struct.Struct("<Q")
#: With the learner standing still, actors fill the batches that they may in this time.
FILL_S = 2.0


def inject(world: World, fault: Fault) -> str:
    """The newest chunk that has not been delivered, while the learner stands still."""
    with world.stopped(world.services("learner")[0]):
        if not world.wait(FILL_S, lambda: _newest(world) is not None):
            return "no chunk was there to be hit"
        cell = _newest(world)
        return _flip(world, cell, fault.amount) if cell else "the chunk was gone"


def _newest(world: World) -> list[int] | None:
    """The cell of the last committed chunk after the last delivery."""
    cell = None
    for record in read_records(world.paths.store_log):
        if record["k"] == "commit":
            cell = record["c"]["c"]
        elif record["k"] in ("deliver", "open"):
            cell = None
    return cell


def _flip(world: World, cell: list[int], part: float) -> str:
    slab, offset, generation = cell
    with open(world.paths.runtime / f"slab-{slab}", "r+b") as file:
        file.seek(offset)
        if _GENERATION.unpack(file.read(_GENERATION.size))[0] != generation:
            return "the chunk was gone"
        place = offset + HEADER_BYTES + int(part * 256)
        file.seek(place)
        (byte,) = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ 0x10]))
    return f"slab {slab}, byte {place}"
