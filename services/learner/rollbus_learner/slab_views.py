"""Maps of slabs as columns, and the check that nothing changed while they were read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rollbus_core.columns import Layout
from rollbus_core.slabs import SlabFolder

Columns = dict[str, np.ndarray]


class Slabs:
    """The slabs of one folder, as columns [num_cells, ...] and generations [num_cells]."""

    def __init__(self, folder: SlabFolder) -> None:
        self.folder = folder
        self._layouts: dict[str, Layout] = {}
        self._views: dict[tuple[int, int, str], tuple[Layout, Columns, np.ndarray]] = {}

    def layout(self, data: Mapping[str, Any]) -> Layout:
        """The layout that a message holds; equal ones are parsed once."""
        key = repr(data)
        if key not in self._layouts:
            self._layouts[key] = Layout.from_data(data)
        return self._layouts[key]

    def open(self, item: Mapping[str, Any]) -> tuple[Layout, Columns, np.ndarray]:
        """Layout, columns and generations of the slab that ``item`` names (slab, slab_bytes, layout).

        Raises `PeerLost` if the slab is gone.
        """
        layout = self.layout(item["layout"])
        key = (int(item["slab"]), int(item["slab_bytes"]), layout.key)
        if key not in self._views:
            buffer = self.folder.open(key[0], key[1])
            num_cells = key[1] // layout.cell_bytes
            generations = np.ndarray((num_cells,), np.uint64, buffer, 0, (layout.cell_bytes,))
            self._views[key] = (layout, layout.slab_views(buffer, num_cells), generations)
        return self._views[key]

    def forget(self, slab: int) -> None:
        """Drop the maps of a slab that is gone."""
        self._views = {key: view for key, view in self._views.items() if key[0] != slab}
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
