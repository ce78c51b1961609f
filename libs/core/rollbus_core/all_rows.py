"""Whether an array of rows is simply all of them, which is how nearly every tick and act comes."""

from __future__ import annotations

import numpy as np


class AllRows:
    """The rows 0 to N - 1 in order."""

    def __init__(self, num_rows: int) -> None:
        #: int32 [N], read-only.
        self.rows = np.arange(num_rows, dtype=np.int32)
        self.rows.flags.writeable = False
        self._bytes = self.rows.tobytes()

    def are(self, rows: np.ndarray) -> bool:
        """Whether ``rows``, any array, holds these rows in this order."""
        if rows is self.rows:
            return True
        if rows.shape != self.rows.shape:
            return False
        if rows.dtype == self.rows.dtype:
            return rows.tobytes() == self._bytes  # a fifth of the time of comparing the arrays
        return bool((rows == self.rows).all())
