"""A hub is killed and comes back on another port."""

from __future__ import annotations

import signal

from rollbus_launch.chaos.schedule import Fault
from rollbus_launch.chaos.world import World


def inject(world: World, fault: Fault) -> str:
    """Actors hear of the new address from the registry."""
    victim = fault.choose(world.services("hub"))
    world.signal(victim, signal.SIGKILL)
    return f"{victim} {_port(world, victim)}"


def confirm(world: World, fault: Fault, what: str) -> str:
    """It really has another port."""
    victim, _, before = what.partition(" ")
    after = _port(world, victim)
    if after == before:
        raise AssertionError(f"{victim} came back on the same port {after}")
    return f"{what} -> {after}"


def _port(world: World, hub: str) -> str:
    return world.endpoints.get(hub, "").rpartition(":")[2]
