"""The disk of the run folder is full."""

from __future__ import annotations

import time

from rollbus_launch.chaos.schedule import Fault
from rollbus_launch.chaos.world import World

needs = ("disk",)


def inject(world: World, fault: Fault) -> str:
    """What is freed meanwhile is taken, too."""
    assert world.disk is not None
    duration_s = fault.between(1.0, 4.0)
    deadline = time.monotonic() + duration_s
    while time.monotonic() < deadline:
        world.disk.fill()
        world.wait(0.1)
    world.disk.relieve()
    return f"for {duration_s:.1f} s"
