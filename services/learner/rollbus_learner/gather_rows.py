"""Whole rows of chunks for policies with a recurrent state: [T, S, ...], in the order of the draw.

A draw names steps; each stands for the row of its chunk that it is in, so that a row is drawn as often as it
is long. Symbols: T decisions of a chunk, S sequences.
"""

from __future__ import annotations

import numpy as np

from rollbus_learner.drawn import Chunks
from rollbus_learner.slab_views import Buffers, Columns, Slabs
from rollbus_wire.errors import ConfigError, StaleRead
from rollbus_wire.messages import Batch

_PER_ROW = frozenset({"lengths", "last_step", "last_value", "carry"})


def gather(slabs: Slabs, message: Batch, buffers: Buffers) -> tuple[Columns, int]:
    """The rows that ``message`` draws, and how many of its chunks were not readable.

    ``valid`` bool [T, S]: within the row, not interrupted, readable. ``start`` bool [T, S]: an episode
    begins. ``state`` float32 [S, n]: before the first decision, where it was recorded (data has none).
    Raises `StaleRead` if nothing is readable.
    """
    assert message.chunk is not None and message.chunk_generation is not None
    chunk = message.chunk.ravel()
    batch: Columns = {}
    readable, lengths = np.zeros(len(chunk), bool), np.zeros(len(chunk), np.int64)
    for part in Chunks(slabs, message).drawn():
        if part.view.layout.num_history:
            raise ConfigError("sequences have no stacked frames: set env.frame_stack: 1")
        for name, column in part.view.columns.items():
            if name.startswith("final_") and name != "final_slot":
                continue
            if name == "carry":
                state = np.ascontiguousarray(column[part.cell, part.row]).view(np.float32)
                _target(batch, buffers, "state", (len(chunk), state.shape[-1]), state.dtype)[part.place] = (
                    state
                )
            elif name not in _PER_ROW:
                length = part.view.layout.num_decisions
                rows = np.moveaxis(column[part.cell, :length, part.row], 0, 1)
                shape = (length, len(chunk), *rows.shape[2:])
                _target(batch, buffers, name, shape, rows.dtype)[:, part.place] = rows
        lengths[part.place] = part.view.columns["lengths"][part.cell, part.row]
        named = message.chunk_generation[chunk[part.place]]
        readable[part.place] = part.view.generations[part.cell] == named
    if not readable.any():
        raise StaleRead(
            f"none of {readable.size} sequences is readable any more: the store freed their chunks before "
            "they were read"
        )
    inside = np.arange(len(batch["step"]))[:, None] < lengths
    batch["valid"] = inside & ~batch["interrupted"] & readable
    batch["start"] = inside & (batch["step"] == 0)
    return batch, len(np.unique(chunk[~readable]))


def _target(
    batch: Columns, buffers: Buffers, name: str, shape: tuple[int, ...], dtype: np.dtype
) -> np.ndarray:
    if name not in batch:
        batch[name] = buffers.get(name, shape, dtype)
        batch[name].fill(0)
    return batch[name]
