"""Messages arrive twice."""

from __future__ import annotations

from rollbus_launch.chaos.messages import disturb
from rollbus_launch.chaos.schedule import Fault
from rollbus_launch.chaos.world import World


def inject(world: World, fault: Fault) -> str:
    """On one plane, in both directions."""
    return disturb(world, fault, "doubled", (0.05, 0.5))
