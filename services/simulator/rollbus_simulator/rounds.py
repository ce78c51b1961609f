"""Episodes that come in rounds: who ends first waits until all rows of the slice have ended."""

from __future__ import annotations

import numpy as np


class Round:
    """Which of N rows wait. Without ``together`` none ever does."""

    def __init__(self, num_rows: int, *, together: bool) -> None:
        self._together = together
        #: Rows whose episode of this round is over, bool [N].
        self.waits = np.zeros(num_rows, bool)

    def end(self, places: np.ndarray) -> None:
        """The episodes of ``places`` are over; after the last ones nobody waits any more."""
        if self._together:
            self.waits[places] = True
            if self.waits.all():
                self.waits[:] = False
