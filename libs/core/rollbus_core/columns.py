"""The columns of a chunk and where they lie in a cell of a slab.

A `Layout` is computed from specs by the producer, travels as data, and gives both sides the same
views on the same bytes. All cells of a slab have one layout, so a whole slab can be viewed at once
as ``[num_cells, ...]`` and gathered by index without a loop over chunks.

Symbols: T decisions per row, N rows, K stacked frames, C environment steps per decision, M finals.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollbus_wire.codec import DTYPES
from rollbus_wire.errors import SpecError

#: Each cell begins with one uint64: the generation that the store gave it.
HEADER_BYTES = 64
ALIGNMENT = 64


@dataclass(frozen=True)
class Column:
    """One array of a cell."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def num_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Layout:
    """Columns of one cell for up to T decisions of N rows and M finals."""

    num_decisions: int
    num_rows: int
    num_finals: int
    #: Frames stored before the first observation (K - 1).
    num_history: int
    columns: tuple[Column, ...]

    @classmethod
    def build(
        cls,
        columns: Mapping[str, tuple[str, tuple[int, ...]]],
        *,
        num_decisions: int,
        num_rows: int,
        num_finals: int,
        num_history: int = 0,
    ) -> Layout:
        """Lay out ``columns``: name -> (dtype, full shape inside the cell)."""
        offset, placed = HEADER_BYTES, []
        for name, (dtype, shape) in columns.items():
            column = Column(name, dtype, tuple(shape), offset)
            placed.append(column)
            offset = _align(offset + column.num_bytes)
        return cls(num_decisions, num_rows, num_finals, num_history, tuple(placed))

    @property
    def cell_bytes(self) -> int:
        """Bytes of one cell, header included."""
        last = self.columns[-1]
        return _align(last.offset + last.num_bytes)

    @property
    def key(self) -> str:
        """Equal for equal layouts."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:16]

    def views(self, buffer: Any, offset: int = 0) -> dict[str, np.ndarray]:
        """Arrays over one cell that starts at ``offset`` of ``buffer``."""
        return {c.name: np.ndarray(c.shape, c.dtype, buffer, offset + c.offset) for c in self.columns}

    def slab_views(self, buffer: Any, num_cells: int) -> dict[str, np.ndarray]:
        """Arrays ``[num_cells, ...]`` over all cells of a slab."""
        stride = self.cell_bytes
        views = {}
        for c in self.columns:
            inner = np.ndarray(c.shape, c.dtype, buffer, c.offset).strides
            views[c.name] = np.ndarray((num_cells, *c.shape), c.dtype, buffer, c.offset, (stride, *inner))
        return views

    def to_data(self) -> dict[str, Any]:
        """Plain maps and lists, for the wire and the store's log."""
        return {
            "num_decisions": self.num_decisions,
            "num_rows": self.num_rows,
            "num_finals": self.num_finals,
            "num_history": self.num_history,
            "columns": [[c.name, c.dtype, list(c.shape), c.offset] for c in self.columns],
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Layout:
        """The inverse of `to_data`; a layout that does not fit itself is refused."""
        try:
            given = [(str(n), str(d), tuple(map(int, s)), int(o)) for n, d, s, o in data["columns"]]
            layout = cls.build(
                {name: (dtype, shape) for name, dtype, shape, _ in given},
                num_decisions=int(data["num_decisions"]),
                num_rows=int(data["num_rows"]),
                num_finals=int(data["num_finals"]),
                num_history=int(data["num_history"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise SpecError(f"chunk layout is not readable: {error!r}") from None
        bad = [d for _, d, _, _ in given if d not in DTYPES]
        if bad or not given or [c.offset for c in layout.columns] != [o for *_, o in given]:
            raise SpecError(f"chunk layout is inconsistent (dtypes {bad})")
        return layout


def chunk_columns(
    obs: Mapping[str, tuple[str, tuple[int, ...]]],
    action: tuple[str, tuple[int, ...]],
    *,
    num_decisions: int,
    num_rows: int,
    num_finals: int,
    num_history: int,
    chunk_length: int,
    carry_bytes: int = 0,
    extras: Mapping[str, tuple[str, tuple[int, ...]]] | None = None,
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The standard columns of a chunk: name -> (dtype, shape), in their order in a cell.

    ``obs/*`` hold K-1+T+1 frames: history, then observation 0..T. ``final_slot`` [T, N] is the
    place of a step's final observation among the M finals, or -1. ``lengths`` [N] says how many
    decisions of each row are valid. ``extras`` (log_prob, value, ...) are per decision, [T, N, ...];
    a ``value`` extra also gives ``last_value`` [N] and ``final_value`` [M].
    """
    t, n, m = num_decisions, num_rows, num_finals
    extras = dict(extras or {})
    columns: dict[str, tuple[str, tuple[int, ...]]] = {"lengths": ("int32", (n,))}
    for key, (dtype, shape) in obs.items():
        columns[f"obs/{key}"] = (dtype, (num_history + t + 1, n, *shape))
    for key, (dtype, shape) in obs.items():
        columns[f"final_obs/{key}"] = (dtype, (m, *shape))
    columns |= {
        "action": (action[0], (t, n, *action[1])),
        "reward": ("float32", (t, n, chunk_length)),
        "num_steps": ("int32", (t, n)),
        "terminated": ("bool", (t, n)),
        "truncated": ("bool", (t, n)),
        "interrupted": ("bool", (t, n)),
        "final_slot": ("int32", (t, n)),
        "episode": ("int64", (t, n)),
        "step": ("int32", (t, n)),
        "version": ("int64", (t, n)),  # Version.pack()
        "source": ("uint8", (t, n)),
        "final_return": ("float32", (m,)),
        "final_length": ("int32", (m,)),
        "final_success_once": ("int8", (m,)),
        "final_success_at_end": ("int8", (m,)),
        "last_step": ("int32", (n,)),
    }
    for name, (dtype, shape) in extras.items():
        columns[name] = (dtype, (t, n, *shape))
    if "value" in extras:
        columns["last_value"] = ("float32", (n,))
        columns["final_value"] = ("float32", (m,))
    if carry_bytes:
        columns["carry"] = ("uint8", (n, carry_bytes))
    return columns


def observation_layout(obs: Mapping[str, tuple[str, tuple[int, ...]]], num_rows: int) -> Layout:
    """The cell that holds one observation ``[num_rows, ...]`` per key, from a hub to an actor."""
    columns = {key: (dtype, (num_rows, *shape)) for key, (dtype, shape) in obs.items()}
    return Layout.build(columns, num_decisions=1, num_rows=num_rows, num_finals=0)


#: Values of the ``source`` column: who chose the action.
SOURCES = ("policy", "random", "expert", "human", "script")


def _align(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT
