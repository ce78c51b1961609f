"""The columns of a chunk and where they lie in a cell of a slab.

A `Layout` is computed from specs by the producer, travels as data, and gives both sides the same
views on the same bytes. All cells of a slab have one layout, so a whole slab can be viewed at once
as ``[num_cells, ...]`` and gathered by index without a loop over chunks.

Symbols: T decisions per row, N rows, K stacked frames, C environment steps per decision, M finals.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollbus_wire.codec import DTYPES
from rollbus_wire.errors import SpecError, short
from rollbus_wire.limits import MAX_ACTION_CHUNK, MAX_ARRAY_BYTES, MAX_DIMENSIONS, MAX_ROWS

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
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


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
            given = [(str(n), _known(d), tuple(map(int, s)), int(o)) for n, d, s, o in data["columns"]]
            _check_sizes(data, given)
            layout = cls.build(
                {name: (dtype, shape) for name, dtype, shape, _ in given},
                num_decisions=int(data["num_decisions"]),
                num_rows=int(data["num_rows"]),
                num_finals=int(data["num_finals"]),
                num_history=int(data["num_history"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise SpecError(f"chunk layout is not readable: {short(error)}") from None
        if not given or [c.offset for c in layout.columns] != [o for *_, o in given]:
            raise SpecError("chunk layout is inconsistent: its columns do not lie where it says")
        if layout.cell_bytes > MAX_ARRAY_BYTES:
            raise SpecError(f"chunk layout of {layout.cell_bytes} bytes; at most {MAX_ARRAY_BYTES}")
        return layout


def _known(dtype: str) -> str:
    if dtype not in DTYPES:
        raise ValueError(f"dtype {short(dtype)}")
    return dtype


def _check_sizes(data: Mapping[str, Any], columns: Sequence[tuple[str, str, tuple[int, ...], int]]) -> None:
    """Raise `ValueError` for counts and shapes that no chunk has."""
    least = {"num_decisions": 1, "num_rows": 1, "num_finals": 0, "num_history": 0}
    for name, smallest in least.items():
        if not smallest <= int(data[name]) <= MAX_ROWS * MAX_ACTION_CHUNK:
            raise ValueError(f"{name} is {short(data[name])}")
    if int(data["num_rows"]) > MAX_ROWS:
        raise ValueError(f"{short(data['num_rows'])} rows; at most {MAX_ROWS}")
    for name, _, shape, _ in columns:
        if len(shape) > MAX_DIMENSIONS or not all(0 <= size <= MAX_ARRAY_BYTES for size in shape):
            raise ValueError(f"column {short(name)} has shape {short(shape)}")


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
