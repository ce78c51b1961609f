"""What a table remembers of a ticket and of a chunk, and how the log writes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from rollbus_core.version import Version


class Cell(NamedTuple):
    """Where a chunk is."""

    slab: int
    offset: int
    generation: int


class Grant(NamedTuple):
    """Leave to begin a chunk. ``batch`` is 0 in replay tables."""

    num_decisions: int
    batch: int
    min_version: Version
    mode: str = "sample"


@dataclass
class TicketInfo:
    """An open ticket."""

    number: int
    sender: str
    slice: str
    num_rows: int
    num_decisions: int
    batch: int
    min_version: Version
    cell: Cell
    #: Monotonic seconds; not kept over a restart, because tickets are not.
    expires: float = 0.0

    @property
    def steps(self) -> int:
        """Steps that it may bring."""
        return self.num_rows * self.num_decisions

    def to_data(self) -> list[Any]:
        return [
            self.number, self.sender, self.slice, self.num_rows, self.num_decisions, self.batch,
            list(self.min_version), list(self.cell),
        ]  # fmt: skip

    @classmethod
    def from_data(cls, data: list[Any]) -> TicketInfo:
        number, sender, slice, num_rows, num_decisions, batch, version, cell = data
        return cls(number, sender, slice, num_rows, num_decisions, batch, Version.of(version), Cell(*cell))


@dataclass
class Chunk:
    """A committed chunk; ``lengths`` int32 [N] decisions per row."""

    sequence: int
    ticket: int
    cell: Cell
    slice: str
    lengths: np.ndarray
    num_finals: int
    digest: int
    oldest: Version
    newest: Version
    order: list[int] = field(default_factory=list)
    digest_kind: str = "crc32"
    #: Late columns that have come, float32 [T, N] each, T the longest row.
    late: dict[str, np.ndarray] = field(default_factory=dict)
    steps: int = 0

    def __post_init__(self) -> None:
        self.steps = int(self.lengths.sum())

    @property
    def num_rows(self) -> int:
        return len(self.lengths)

    @property
    def late_shape(self) -> tuple[int, int]:
        """(T, N) of a late column."""
        return int(self.lengths.max(initial=0)), len(self.lengths)

    def attach(self, column: str, values: bytes) -> None:
        """A late column has come."""
        self.late[column] = np.frombuffer(values, np.float32).reshape(self.late_shape)

    def to_data(self) -> dict[str, Any]:
        return {
            "q": self.sequence, "t": self.ticket, "c": list(self.cell), "s": self.slice,
            "l": self.lengths.tobytes(), "f": self.num_finals, "d": self.digest,
            "o": list(self.oldest), "n": list(self.newest), "r": self.order,
            "k": self.digest_kind, "a": {name: values.tobytes() for name, values in self.late.items()},
        }  # fmt: skip

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Chunk:
        chunk = cls(
            data["q"], data["t"], Cell(*data["c"]), data["s"], np.frombuffer(data["l"], np.int32),
            data["f"], data["d"], Version.of(data["o"]), Version.of(data["n"]), list(data["r"]),
            data.get("k", "crc32"),
        )  # fmt: skip
        for name, values in data.get("a", {}).items():
            chunk.attach(name, values)
        return chunk
