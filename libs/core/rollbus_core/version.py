"""A weight version: (lineage, number).

``number`` counts updates. A resume opens a new lineage at the number of its checkpoint, so that what
the dead lineage made after that point can be told apart. In an int64 column a version is packed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rollbus_wire.errors import WireError, short

#: What is left of an int64, without its sign.
_SHIFT, _LINEAGE_BITS = 40, 23


class Version(NamedTuple):
    """Ordered by lineage, then number."""

    lineage: int = 0
    number: int = 0

    def pack(self) -> int:
        """One int64 that orders like the pair."""
        return self.lineage << _SHIFT | self.number

    @classmethod
    def unpack(cls, packed: int) -> Version:
        """The inverse of `pack`."""
        return cls(int(packed) >> _SHIFT, int(packed) & ((1 << _SHIFT) - 1))

    @classmethod
    def of(cls, pair: Sequence[int]) -> Version:
        """From the wire's list of two. Raises `WireError` for anything else."""
        if len(pair) != 2 or not (0 <= pair[0] < 1 << _LINEAGE_BITS and 0 <= pair[1] < 1 << _SHIFT):
            raise WireError(f"{short(list(pair))} is no version: two whole numbers, lineage and number")
        return cls(int(pair[0]), int(pair[1]))

    def next(self) -> Version:
        """After one more update."""
        return Version(self.lineage, self.number + 1)

    def __str__(self) -> str:
        return f"{self.lineage}.{self.number}"
