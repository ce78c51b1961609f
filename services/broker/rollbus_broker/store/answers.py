"""What tables say on the wire."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollbus_broker.store.pool import SlabPool
from rollbus_broker.store.records import Chunk
from rollbus_broker.store.replay_table import ReplayTable
from rollbus_broker.store.tables import Table
from rollbus_wire.messages import Batch, Sample, TableState


def queue_batch(table: Table, number: int, chunks: list[Chunk], pool: SlabPool) -> Batch:
    """Whole chunks, one map each."""
    return Batch(table.name, number, [chunk_map(c, pool) for c in chunks], total_steps=table.total_steps)


def chunk_map(chunk: Chunk, pool: SlabPool) -> dict[str, Any]:
    """Where a chunk is and what it is made of."""
    slab = pool.slabs[chunk.cell.slab]
    return {
        "slab": chunk.cell.slab, "slab_bytes": slab.num_bytes, "offset": chunk.cell.offset,
        "generation": chunk.cell.generation, "sequence": chunk.sequence, "lengths": chunk.lengths,
        "num_finals": chunk.num_finals, "digest": chunk.digest, "digest_kind": chunk.digest_kind,
        "layout": slab.data,
        "oldest": list(chunk.oldest), "newest": list(chunk.newest), "order": chunk.order,
        "slice": chunk.slice, "late": chunk.late,
    }  # fmt: skip


def replay_batch(table: ReplayTable, number: int, sample: Sample, pool: SlabPool) -> Batch:
    """A draw of ``num_batches`` x ``batch_size`` steps with the chunks that it uses as arrays."""
    shape = (sample.num_batches, sample.batch_size)
    draw = table.draw(shape[0] * shape[1], sample.seed, sample.ahead)
    numbers, place = np.unique(draw.slab, return_inverse=True)
    slabs = [pool.slabs[int(n)] for n in numbers]
    return Batch(
        table.name,
        number,
        [],
        chunk=draw.chunk.reshape(shape),
        time=draw.time.reshape(shape),
        row=draw.row.reshape(shape),
        total_steps=table.total_steps,
        slabs=[{"slab": s.number, "slab_bytes": s.num_bytes, "layout": s.data} for s in slabs],
        chunk_slab=place.astype(np.int32),
        chunk_offset=draw.offset,
        chunk_generation=draw.generation,
        chunk_following=draw.following,
        step=None if draw.step is None else draw.step.reshape(shape),
        probability=None if draw.probability is None else draw.probability.reshape(shape),
        late=draw.late and {name: np.ascontiguousarray(v).reshape(shape) for name, v in draw.late.items()},
    )


def table_state(table: Table, num_bytes: int) -> TableState:
    """The answer to `OpenTable`, `Consumed` and `Durable`."""
    return TableState(
        table.name, table.delivered, table.num_chunks(), table.live_steps(), num_bytes,
        len(table.tickets), table.total_steps, dict(table.dropped),
    )  # fmt: skip


def table_row(
    table: Table, num_bytes: int, room: str, waiting_tickets: int, waiting_samples: int
) -> dict[str, Any]:
    """One table for people and /metrics."""
    return {
        "table": table.name, "sampler": table.config.sampler, "state": room,
        "version": list(table.version), "delivered": table.delivered,
        "chunks": table.num_chunks(), "steps": table.live_steps(), "bytes": num_bytes,
        "max_bytes": table.config.max_bytes, "tickets": len(table.tickets),
        "outstanding_steps": table.outstanding, "total_steps": table.total_steps,
        "updates": table.updates, "waiting_tickets": waiting_tickets,
        "waiting_samples": waiting_samples, "unannotated": len(table.unannotated),
        "dropped": dict(table.dropped),
    }  # fmt: skip
