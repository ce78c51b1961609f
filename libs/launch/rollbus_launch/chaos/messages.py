"""What the faults of messages have in common."""

from __future__ import annotations

from rollbus_launch.chaos.proxy import Rule
from rollbus_launch.chaos.schedule import Fault
from rollbus_launch.chaos.world import World

DURATION_S = 3.0


def disturb(
    world: World, fault: Fault, kind: str, shares: tuple[float, float], delay_s: float = 0.0
) -> str:  # fmt: skip
    """On one plane, in both directions, a share of the messages within ``shares``; what was done."""
    plane, share = fault.choose(["registry", "store", "data"]), fault.between(*shares)
    before = world.proxy.done[kind]
    world.proxy.set(Rule(kind, plane, share, delay_s))
    world.wait(DURATION_S)
    world.proxy.set(None)
    return f"{world.proxy.done[kind] - before} messages, {plane} plane"
