"""Slabs as columns, and arrays that batches are written to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rollbus_core.columns import HEADER_BYTES, Layout
from rollbus_core.slabs import SlabFolder

Columns = dict[str, np.ndarray]


@dataclass
class SlabView:
    """One slab. Its store may write to it at any time; generations tell."""

    slab: int
    num_bytes: int
    buffer: Any
    layout: Layout
    #: [num_cells, ...] each.
    columns: Columns
    #: uint64 [num_cells].
    generations: np.ndarray
    _records: Columns = field(default_factory=dict)

    def cell(self, offset: Any) -> Any:
        """Index of the cell at byte ``offset``; an array of them for an array."""
        return offset // self.layout.cell_bytes

    def content(self, cell: int) -> memoryview:
        """The bytes of a cell after its header: what digests are of."""
        start = cell * self.layout.cell_bytes
        return memoryview(self.buffer)[start + HEADER_BYTES : start + self.layout.cell_bytes]

    def records(self, name: str, dims: int) -> np.ndarray:
        """Column ``name`` as [num_cells, n]: its first ``dims`` dimensions joined, the rest one opaque item.

        One index pair per sample, which numpy gathers twice as fast as one per dimension.
        """
        found = self._records.get(name)
        if found is None:
            column = self.columns[name]
            joined, inner = column.shape[1 : 1 + dims], column.shape[1 + dims :]
            size = int(np.prod(inner, dtype=np.int64)) * column.itemsize
            dtype = column.dtype if not inner else np.dtype((np.void, size))
            place = next(c.offset for c in self.layout.columns if c.name == name)
            shape = (len(column), int(np.prod(joined, dtype=np.int64)))
            strides = (self.layout.cell_bytes, size)
            found = self._records[name] = np.ndarray(shape, dtype, self.buffer, place, strides)
        return found


class Slabs:
    """The slabs of one folder."""

    def __init__(self, folder: SlabFolder) -> None:
        self.folder = folder
        self._views: dict[int, SlabView] = {}

    def open(self, item: Mapping[str, Any]) -> SlabView:
        """The slab that ``item`` names (slab, slab_bytes, layout). Raises `PeerLost` if it is gone."""
        slab, num_bytes = int(item["slab"]), int(item["slab_bytes"])
        known = self._views.get(slab)
        if known is None or known.num_bytes != num_bytes:
            buffer, layout = self.folder.open(slab, num_bytes), Layout.from_data(item["layout"])
            num_cells = num_bytes // layout.cell_bytes
            generations = np.ndarray((num_cells,), np.uint64, buffer, 0, (layout.cell_bytes,))
            known = SlabView(
                slab, num_bytes, buffer, layout, layout.slab_views(buffer, num_cells), generations
            )
            self._views[slab] = known
        return known

    def forget(self, slab: int) -> None:
        """Map it anew at the next use: it is gone, or its file may have been replaced."""
        self._views.pop(slab, None)
        self.folder.forget(slab)


class Buffers:
    """Arrays that are written anew at every gather; one that keeps its shape keeps its pages."""

    def __init__(self) -> None:
        self._arrays: Columns = {}

    def get(self, name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """An array of this shape; what it holds is undefined."""
        found = self._arrays.get(name)
        if found is None or found.shape != shape or found.dtype != dtype:
            found = self._arrays[name] = np.zeros(shape, dtype)
        return found
