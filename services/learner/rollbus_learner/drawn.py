"""The chunks that a replay draw names, and samples in them, slab by slab.

Symbols: C chunks of the draw, s samples of a part.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rollbus_learner.slab_views import Slabs, SlabView
from rollbus_wire.errors import PeerLost
from rollbus_wire.messages import Batch


@dataclass
class Part:
    """The samples of one slab: where they are in it, and their places in the batch."""

    view: SlabView
    place: np.ndarray
    cell: np.ndarray
    time: np.ndarray
    row: np.ndarray

    @property
    def depth(self) -> int:
        """Stacked frames, K."""
        return self.view.layout.num_history + 1

    def at(self, time: np.ndarray) -> np.ndarray:
        """Index of (time, row) among the joined first two dimensions of a column."""
        return time * self.view.layout.num_rows + self.row


class Chunks:
    """The chunks of a draw, their slabs open."""

    def __init__(self, slabs: Slabs, message: Batch) -> None:
        assert message.chunk is not None and message.time is not None and message.row is not None
        assert message.chunk_slab is not None and message.chunk_offset is not None
        assert message.chunk_generation is not None
        self._slab, self._offset = message.chunk_slab, message.chunk_offset
        self._generation = message.chunk_generation
        by_memory = np.lexsort((self._offset, self._slab))
        self._rank = np.empty_like(by_memory)
        self._rank[by_memory] = np.arange(len(by_memory))
        self._views = [_open(slabs, item) for item in message.slabs]
        #: Of each sample [S].
        self.chunk, self.time, self.row = message.chunk.ravel(), message.time.ravel(), message.row.ravel()
        #: int32 [C]: the chunk that followed each one in its slice, or -1 if it is not here.
        self.following: np.ndarray = (
            np.full(len(self._slab), -1, np.int32) if message.chunk_following is None
            else message.chunk_following
        )  # fmt: skip

    def drawn(self) -> list[Part]:
        """All samples."""
        return self.parts(np.arange(len(self.chunk)), self.chunk, self.time)

    def parts(self, place: np.ndarray, chunk: np.ndarray, time: np.ndarray) -> list[Part]:
        """``time`` of ``chunk`` [s] on the rows of the samples at ``place``, by slab, in the order of memory.

        Without those of slabs that are gone.
        """
        order = np.argsort(self._rank[chunk], kind="stable")
        place, chunk, time = place[order], chunk[order], time[order]
        bounds = np.searchsorted(self._slab[chunk], np.arange(len(self._views) + 1))
        found = []
        for view, begin, end in zip(self._views, bounds[:-1], bounds[1:]):
            if begin < end and view is not None:
                mine = slice(begin, end)
                cell = view.cell(self._offset[chunk[mine]])
                found.append(Part(view, place[mine], cell, time[mine], self.row[place[mine]]))
        return found

    def readable(self) -> np.ndarray:
        """Bool [C]: the cell still holds the chunk; ask after reading."""
        found = np.zeros(len(self._slab), bool)
        for number, view in enumerate(self._views):
            mine = np.flatnonzero(self._slab == number)
            if view is not None:
                found[mine] = view.generations[view.cell(self._offset[mine])] == self._generation[mine]
        return found


def _open(slabs: Slabs, item: dict) -> SlabView | None:
    try:
        return slabs.open(item)
    except PeerLost:
        slabs.forget(int(item["slab"]))
        return None
