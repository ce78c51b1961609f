"""The learner is slow: it stands still nine tenths of the time."""

from __future__ import annotations

import time

from rollbus_launch.chaos.schedule import Fault
from rollbus_launch.chaos.world import World

PERIOD_S = 0.2


def inject(world: World, fault: Fault) -> str:
    """Producers wait for tickets meanwhile."""
    victim, duration_s = world.services("learner")[0], fault.between(2.0, 5.0)
    deadline = time.monotonic() + duration_s
    while time.monotonic() < deadline:
        with world.stopped(victim):
            world.wait(0.9 * PERIOD_S)
        world.wait(0.1 * PERIOD_S)
    return f"{victim} for {duration_s:.1f} s"
