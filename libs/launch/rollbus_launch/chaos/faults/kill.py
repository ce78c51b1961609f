"""A service is killed (kill -9)."""

from __future__ import annotations

import signal

from rollbus_launch.chaos.schedule import Fault
from rollbus_launch.chaos.world import World


def inject(world: World, fault: Fault) -> str:
    """Any service."""
    victim = fault.choose(world.services())
    world.signal(victim, signal.SIGKILL)
    return victim
