"""Connections carry nothing any more and nobody is told (half-open TCP)."""

from __future__ import annotations

from rollbus_launch.chaos.schedule import Fault
from rollbus_launch.chaos.world import World


def inject(world: World, fault: Fault) -> str:
    """All present connections of one plane; new ones work."""
    plane = fault.choose(["registry", "store", "data"])
    return f"{world.proxy.freeze(plane)} connections, {plane} plane"
