"""Where single steps for replay are gathered to, and how columns of chunks come there: S samples."""

from __future__ import annotations

import numpy as np

from rollbus_learner.drawn import Part
from rollbus_learner.slab_views import Buffers, Columns


class Target:
    """The batch that parts are written to; ``num`` samples."""

    def __init__(self, num: int, whole: bool, buffers: Buffers) -> None:
        self.batch: Columns = {}
        self._num, self._whole, self._buffers = num, whole, buffers

    def column(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """The column [S, ...]; zeros where slabs are gone."""
        if name not in self.batch:
            self.batch[name] = self._buffers.get(name, (self._num, *shape), dtype)
            if not self._whole:
                self.batch[name].fill(0)
        return self.batch[name]


def put(target: np.ndarray, part: Part, name: str, at: np.ndarray) -> None:
    """Gather the items ``at`` of column ``name`` into the places of ``part`` in ``target`` [S, ...]."""
    records = part.view.records(name, 2)
    found = records[part.cell, at]
    if records.dtype.kind != "V":
        target[part.place] = found
    elif target.flags.c_contiguous:
        target.reshape(len(target), -1).view(records.dtype)[part.place, 0] = found
    else:
        target[part.place] = found.view(target.dtype).reshape(-1, *target.shape[1:])


def put_following(newest: np.ndarray, part: Part, name: str) -> None:
    """The observation after each decision, at an end the final one, into its place in ``newest`` [S, ...]."""
    columns, at = part.view.columns, (part.cell, part.time, part.row)
    put(newest, part, name, part.at(part.time + part.depth))
    slot, finals = columns["final_slot"][at], columns["final_" + name]
    ended = np.flatnonzero((columns["terminated"][at] | columns["truncated"][at]) & (slot >= 0))
    newest[part.place[ended]] = finals[part.cell[ended], np.minimum(slot[ended], finals.shape[1] - 1)]
