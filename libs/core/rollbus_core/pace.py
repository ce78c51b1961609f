"""How many rows one pass of a network should hold, learned from how long passes took. Pure."""

from __future__ import annotations

import math

#: Passes of about one size after which its cost counts.
MIN_PASSES = 3
#: A size is as good as the best one if a row of it costs at most this much more.
AS_GOOD = 1.1


class Pace:
    """Batches share a pass's fixed cost until they outgrow the caches; then larger ones only answer later.

    Sizes are counted by powers of two, each with the least that one of its rows has cost.
    """

    def __init__(self, max_rows: int) -> None:
        self.max_rows = max_rows
        #: Rows that the next pass should hold at most.
        self.limit = max_rows
        self._passes: dict[int, int] = {}
        self._row_s: dict[int, float] = {}

    def took(self, num_rows: int, seconds: float) -> None:
        """A pass over ``num_rows`` > 0 rows took ``seconds``."""
        size, row_s = num_rows.bit_length() - 1, seconds / num_rows
        passes = self._passes[size] = self._passes.get(size, 0) + 1
        cheaper = row_s < self._row_s.get(size, math.inf)
        if cheaper:
            self._row_s[size] = row_s
        if passes == MIN_PASSES or (passes > MIN_PASSES and cheaper):
            self.limit = self._best()

    def _best(self) -> int:
        known = {size: self._row_s[size] for size, num in self._passes.items() if num >= MIN_PASSES}
        enough = AS_GOOD * min(known.values())
        best = min(size for size, row_s in known.items() if row_s <= enough)
        if best == max(known):
            return self.max_rows
        return min(self.max_rows, (2 << best) - 1)
