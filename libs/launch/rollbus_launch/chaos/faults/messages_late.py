"""Messages are late, by up to half a second."""

from __future__ import annotations

from rollbus_launch.chaos.proxy import Rule
from rollbus_launch.chaos.schedule import Fault
from rollbus_launch.chaos.world import World

DURATION_S = 3.0


def inject(world: World, fault: Fault) -> str:
    """On one plane, in both directions."""
    plane, share = fault.choose(["registry", "store", "data"]), fault.between(0.02, 0.2)
    before = world.proxy.done["late"]
    world.proxy.set(Rule("late", plane, share, 0.5))
    world.wait(DURATION_S)
    world.proxy.set(None)
    return f"{world.proxy.done['late'] - before} messages, {plane} plane"
