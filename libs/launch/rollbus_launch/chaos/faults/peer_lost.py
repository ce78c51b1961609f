"""A process that serves environments is killed in mid-episode."""

from __future__ import annotations

import os
import signal

from rollbus_launch.chaos.schedule import Fault
from rollbus_launch.chaos.world import World


def inject(world: World, fault: Fault) -> str:
    """Its rows end interrupted, others take their places."""
    peers = world.peers()
    if not peers:
        return "environments have no processes of their own"
    pid = peers[int(fault.pick * len(peers))]
    os.kill(pid, signal.SIGKILL)
    return f"worker {pid}"
