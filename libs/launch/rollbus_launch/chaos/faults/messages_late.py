"""Messages are late, by up to half a second."""

from __future__ import annotations

from rollbus_launch.chaos.messages import disturb
from rollbus_launch.chaos.schedule import Fault
from rollbus_launch.chaos.world import World


def inject(world: World, fault: Fault) -> str:
    """On one plane, in both directions."""
    return disturb(world, fault, "late", (0.02, 0.2), delay_s=0.5)
