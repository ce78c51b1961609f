"""Cells of slabs: which are free, which are taken, when a slab is made and unlinked.

Each table has its own slabs; all cells of a slab have one layout. Slab ids are never used twice in a
run (they begin with the broker's boot number), so that no reader's map can be of another slab.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rollbus_broker.store.records import Cell
from rollbus_core.columns import HEADER_BYTES, Layout
from rollbus_core.slabs import SlabFolder
from rollbus_wire.errors import ConfigError, PeerLost, RollbusError, SharedMemoryFull

_GENERATION = struct.Struct("<Q")
_PAGE = 4096


class TableFull(RollbusError):
    """A table holds as many bytes as it may."""

    code = "table-full"


@dataclass
class Slab:
    """One slab file."""

    number: int
    table: str
    layout: Layout
    num_bytes: int
    taken: int = 0
    key: str = field(init=False)
    #: The layout as it travels.
    data: dict[str, Any] = field(init=False)
    cell_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.key, self.cell_bytes = self.layout.key, self.layout.cell_bytes
        self.data = self.layout.to_data()

    @property
    def num_cells(self) -> int:
        return self.num_bytes // self.cell_bytes

    def to_data(self) -> dict[str, Any]:
        return {
            "id": self.number, "table": self.table, "layout": self.data,
            "bytes": self.num_bytes,
        }  # fmt: skip

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Slab:
        return cls(data["id"], data["table"], Layout.from_data(data["layout"]), data["bytes"])


class SlabPool:
    """Allocation over a `SlabFolder`. ``on_new`` and ``on_removed`` are told of slabs."""

    def __init__(
        self,
        folder: SlabFolder,
        slab_bytes: int,
        boot: int,
        *,
        on_new: Callable[[Slab], None] = lambda slab: None,
        on_removed: Callable[[Slab], None] = lambda slab: None,
    ) -> None:
        self.folder, self.slab_bytes = folder, slab_bytes
        self._on_new, self._on_removed = on_new, on_removed
        self._next = boot << 20
        self.slabs: dict[int, Slab] = {}
        #: Tables whose cells nobody reads any more when they are freed.
        self.unread: set[str] = set()
        #: (table, layout key) -> free (slab, offset), the next one first.
        self._free: dict[tuple[str, str], deque[tuple[int, int]]] = {}
        self._bytes: dict[str, int] = {}
        #: (slab, offset) of cells that a holder nobody knows of may still write to.
        self._withheld: list[tuple[int, int]] = []

    def table_bytes(self, table: str) -> int:
        """Bytes of all slabs of ``table``."""
        return self._bytes.get(table, 0)

    def allocate(self, table: str, layout: Layout, key: str, max_bytes: int) -> Cell:
        """A cell with a new generation. Raises `TableFull`, `SharedMemoryFull`, `ConfigError`."""
        if not self._free.get((table, key)):
            self._grow(table, layout, max_bytes)
        number, offset = self._free[table, key].popleft()
        self.slabs[number].taken += 1
        buffer = self.buffer(number)
        generation = _GENERATION.unpack_from(buffer, offset)[0] + 1
        _GENERATION.pack_into(buffer, offset, generation)
        return Cell(number, offset, generation)

    def free(self, cell: Cell) -> None:
        """Give a cell back. Of a table in `unread` it is the next one to be used: it is still in the caches.

        Elsewhere it comes after all that were free before it: a reader may be copying it.
        """
        slab = self.slabs.get(cell.slab)
        if slab is None:
            return
        slab.taken -= 1
        free = self._free[slab.table, slab.key]
        (free.appendleft if slab.table in self.unread else free.append)((cell.slab, cell.offset))

    def buffer(self, number: int) -> Any:
        """The map of a slab."""
        return self.folder.open(number, self.slabs[number].num_bytes)

    def generation(self, cell: Cell) -> int:
        """What the header of the cell says now."""
        return int(_GENERATION.unpack_from(self.buffer(cell.slab), cell.offset)[0])

    def content(self, cell: Cell) -> memoryview:
        """The bytes of a cell after its header."""
        view = memoryview(self.buffer(cell.slab))
        return view[cell.offset + HEADER_BYTES : cell.offset + self.slabs[cell.slab].cell_bytes]

    def sync(self, cell: Cell) -> None:
        """Have the cell on disk (for slabs in the run folder)."""
        slab = self.slabs[cell.slab]
        start = cell.offset // _PAGE * _PAGE
        self.buffer(cell.slab).flush(start, cell.offset + slab.cell_bytes - start)

    def adopt(self, slab: Slab, taken: set[int], *, withhold: bool = False) -> bool:
        """Take over a slab of an earlier boot with its cells at ``taken`` in use; False if gone.

        ``withhold``: the others are not used before `release`.
        """
        try:
            self.folder.open(slab.number, slab.num_bytes)
        except PeerLost:
            return False
        self._insert(slab)
        slab.taken = len(taken)
        offsets = (index * slab.cell_bytes for index in range(slab.num_cells))
        free = self._withheld if withhold else self._free[slab.table, slab.key]
        free.extend((slab.number, o) for o in offsets if o not in taken)
        return True

    def release(self) -> bool:
        """Cells that were withheld may be used; whether there were any."""
        cells, self._withheld = self._withheld, []
        for number, offset in cells:
            if (slab := self.slabs.get(number)) is not None:
                self._free[slab.table, slab.key].append((number, offset))
        return bool(cells)

    def remove_strangers(self) -> list[str]:
        """Unlink slab files that belong to no known slab; their names."""
        known = {self.folder.path(number) for number in self.slabs}
        found = [path for path in self.folder.folder.glob("slab-*") if path not in known]
        for path in found:
            path.unlink(missing_ok=True)
        return [path.name for path in found]

    def trim(self, table: str) -> bool:
        """Unlink the slabs of ``table`` that hold nothing; whether there were any."""
        empty = [s for s in self.slabs.values() if s.table == table and not s.taken]
        for slab in empty:
            place = (slab.table, slab.key)
            del self.slabs[slab.number]
            if any((other.table, other.key) == place for other in self.slabs.values()):
                self._free[place] = deque(c for c in self._free[place] if c[0] != slab.number)
            else:  # layouts that nobody uses any more are forgotten: an actor can name any number of them
                del self._free[place]
            self._bytes[table] -= slab.num_bytes
            self.folder.remove(slab.number)
            self._on_removed(slab)
        return bool(empty)

    def _grow(self, table: str, layout: Layout, max_bytes: int) -> None:
        cell_bytes = layout.cell_bytes
        if cell_bytes > max_bytes:
            raise ConfigError(
                f"one chunk of {cell_bytes} bytes is larger than table {table!r} may be "
                f"({max_bytes} bytes): raise the table's max_bytes or record shorter chunks"
            )
        if self.table_bytes(table) + cell_bytes > max_bytes:
            self.trim(table)
        room = max_bytes - self.table_bytes(table)
        if cell_bytes > room:
            raise TableFull(f"table {table!r} holds {self.table_bytes(table)} of {max_bytes} bytes")
        num_cells = max(1, min(self.slab_bytes, room) // cell_bytes)
        slab = self._create(table, layout, num_cells)
        self._insert(slab)
        offsets = range(0, slab.num_bytes, cell_bytes)
        self._free[table, slab.key].extend((slab.number, offset) for offset in offsets)
        self._on_new(slab)

    def _create(self, table: str, layout: Layout, num_cells: int) -> Slab:
        """A slab of ``num_cells`` cells, or of fewer where memory is short."""
        while True:
            slab = Slab(self._next, table, layout, num_cells * layout.cell_bytes)
            try:
                self.folder.create(slab.number, slab.num_bytes)
            except SharedMemoryFull:
                if num_cells == 1:
                    raise
                num_cells = max(1, num_cells // 4)
            else:
                self._next += 1
                return slab

    def _insert(self, slab: Slab) -> None:
        self.slabs[slab.number] = slab
        self._free.setdefault((slab.table, slab.key), deque())
        self._bytes[slab.table] = self.table_bytes(slab.table) + slab.num_bytes
