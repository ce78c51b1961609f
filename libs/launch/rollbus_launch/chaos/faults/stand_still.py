"""A service stands still and goes on (SIGSTOP, SIGCONT), the broker too."""

from __future__ import annotations

from rollbus_launch.chaos.schedule import Fault
from rollbus_launch.chaos.world import World


def inject(world: World, fault: Fault) -> str:
    """Shorter or longer than the silence after which it is lost."""
    victim, duration_s = fault.choose(world.services()), fault.between(0.5, 6.0)
    with world.stopped(victim):
        world.wait(duration_s)
    return f"{victim} for {duration_s:.1f} s"
