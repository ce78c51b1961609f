"""Shared memory is full while a service is killed and starts again."""

from __future__ import annotations

import signal
import time

from rollbus_launch.chaos.schedule import Fault
from rollbus_launch.chaos.world import World

needs = ("memory",)


def inject(world: World, fault: Fault) -> str:
    """What is freed meanwhile is taken, too."""
    assert world.memory is not None
    victim, duration_s = fault.choose(world.services()), fault.between(1.0, 4.0)
    world.memory.fill()
    world.signal(victim, signal.SIGKILL)
    deadline = time.monotonic() + duration_s
    while time.monotonic() < deadline:
        world.memory.fill()
        world.wait(0.1)
    world.memory.relieve()
    return f"for {duration_s:.1f} s, {victim} killed"
