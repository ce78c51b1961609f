"""Messages arrive twice."""

from __future__ import annotations

from rollbus_launch.chaos.proxy import Rule
from rollbus_launch.chaos.schedule import Fault
from rollbus_launch.chaos.world import World

DURATION_S = 3.0


def inject(world: World, fault: Fault) -> str:
    """On one plane, in both directions."""
    plane, share = fault.choose(["registry", "store", "data"]), fault.between(0.05, 0.5)
    before = world.proxy.done["doubled"]
    world.proxy.set(Rule("doubled", plane, share))
    world.wait(DURATION_S)
    world.proxy.set(None)
    return f"{world.proxy.done['doubled'] - before} messages, {plane} plane"
