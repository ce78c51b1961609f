"""Memory of a run by arithmetic: imports once per host, roles, slabs, weights, batches."""

from __future__ import annotations

from rollbus_core.feed import Feed
from rollbus_core.plan.costs import StageCosts
from rollbus_core.plan.layouts import Host, Layout, Process

#: Buffers of a weight slot (docs/protocol.md, "Weights").
NUM_WEIGHT_BUFFERS = 3
#: Consumed deliveries that a queue keeps for a resume, as long as there is room.
NUM_KEPT_DELIVERIES = 32


def process_bytes(process: Process, costs: StageCosts) -> float:
    """Private memory of one process."""
    parts = [costs.role_bytes.get(role, 0.0) for role in ("process", *process.roles)]
    return sum(parts) + (costs.batch_bytes if "learner" in process.roles else 0.0)


def slab_bytes(costs: StageCosts, feed: Feed, slab_bytes: int) -> float:
    """Shared memory of the table: what is kept, and what is begun, in whole slabs."""
    table = feed.table
    if table.sampler == "queue":
        num_steps = table.batch_steps * (NUM_KEPT_DELIVERIES + table.max_lag + 1)
    else:
        num_steps = table.max_steps or table.max_bytes // max(1, int(costs.step_bytes))
    wanted = min(float(table.max_bytes), num_steps * costs.step_bytes)
    return float(-(-int(wanted) // slab_bytes) * slab_bytes)


def host_bytes(host: Host, costs: StageCosts, feed: Feed, slab: int, *, first: bool) -> dict[str, float]:
    """Memory of one host by its use. The ``first`` has the launcher and the store's slabs."""
    rows: dict[str, float] = {"imports, once": costs.shared_bytes}
    for process in host.processes:
        rows[process.name] = process_bytes(process, costs)
    rows["weights"] = NUM_WEIGHT_BUFFERS * costs.weights_bytes
    if first:
        rows["launcher"] = costs.role_bytes.get("launcher", 0.0)
        rows["slabs"] = slab_bytes(costs, feed, slab)
    return rows


def largest(layout: Layout, costs: StageCosts, feed: Feed, slab: int) -> float:
    """Bytes of the host that needs most."""
    return max(
        sum(host_bytes(host, costs, feed, slab, first=not number).values())
        for number, host in enumerate(layout.hosts)
    )
