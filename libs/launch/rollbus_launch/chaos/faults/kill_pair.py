"""Two services are killed at once (kill -9)."""

from __future__ import annotations

import signal

from rollbus_launch.chaos.schedule import Fault
from rollbus_launch.chaos.world import World


def inject(world: World, fault: Fault) -> str:
    """Two of broker, hubs, actors and learner."""
    victims = fault.pair(world.services("broker", "hub", "actor", "learner"))
    for victim in victims:
        world.signal(victim, signal.SIGKILL)
    return " + ".join(victims)
