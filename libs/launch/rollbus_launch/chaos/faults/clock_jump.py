"""The wall clock jumps by up to a day, in either direction."""

from __future__ import annotations

from rollbus_launch.chaos import clock
from rollbus_launch.chaos.schedule import Fault
from rollbus_launch.chaos.world import World


def inject(world: World, fault: Fault) -> str:
    """There, and back after two seconds."""
    seconds = fault.between(-86400.0, 86400.0)
    clock.jump(world.clock, seconds)
    world.wait(2.0)
    clock.jump(world.clock, 0.0)
    return f"by {seconds:+.0f} s and back"
