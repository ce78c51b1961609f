"""Who may begin a chunk and when a batch is there: the store's two kinds of table as arithmetic.

Mirrors docs/protocol.md, "Store plane"; a test holds both against the real tables of the broker.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from rollbus_core.feed import TableConfig


class Grant(NamedTuple):
    """Leave to begin a chunk."""

    num_decisions: int
    #: The batch it is for; 0 in a replay table.
    batch: int
    #: Nothing older may decide.
    min_version: int


class ModelTable(Protocol):
    """What the model's store asks of a table. ``num_rows`` counts the rows of all copies of a slice."""

    version: int

    def place(self, num_rows: int, asked: int) -> Grant | None:
        """A grant, already entered; None: wait."""

    def commit(self, grant: Grant, steps: int) -> None:
        """A chunk of ``steps`` steps came."""

    def take(self) -> int | None:
        """The steps of the next batch, if it is there; it is delivered then."""

    def consumed(self) -> None:
        """The learner has applied the batch."""


class QueueModel:
    """Batches of ``batch_steps``, at most ``max_lag + 1`` begun and not consumed."""

    def __init__(self, config: TableConfig) -> None:
        self.config = config
        self.version = self.delivered = self.applied = 0
        self._granted: dict[int, int] = {}
        self._open: dict[int, int] = {}
        self._steps: dict[int, int] = {}
        self._min_rows = 0

    def place(self, num_rows: int, asked: int) -> Grant | None:
        for number in range(self.delivered + 1, self.applied + self.config.max_lag + 2):
            room = self.config.batch_steps - self._granted.get(number, 0)
            num_decisions = min(asked, room // num_rows)
            if num_decisions > 0:
                self._granted[number] = self._granted.get(number, 0) + num_decisions * num_rows
                self._open[number] = self._open.get(number, 0) + 1
                self._min_rows = min(self._min_rows or num_rows, num_rows)
                ahead = number - self.applied - 1
                return Grant(num_decisions, number, max(0, self.version + ahead - self.config.max_lag))
        return None

    def commit(self, grant: Grant, steps: int) -> None:
        self._open[grant.batch] -= 1
        self._steps[grant.batch] = self._steps.get(grant.batch, 0) + steps

    def take(self) -> int | None:
        number = self.delivered + 1
        room = self.config.batch_steps - self._granted.get(number, 0)
        if number not in self._steps or self._open[number] or room >= max(1, self._min_rows):
            return None
        self.delivered = number
        return self._steps.pop(number)

    def consumed(self) -> None:
        self.applied = self.delivered
        self.version += 1


class ReplayModel:
    """Draws that follow insertions: ``steps_per_update`` steps per update."""

    def __init__(self, config: TableConfig) -> None:
        self.config = config
        self.version = 0
        self._begun = self._total = self._seen = 0

    def place(self, num_rows: int, asked: int) -> Grant | None:
        if self._begun > self._target(self.version + 1):
            return None
        self._begun += num_rows * asked
        return Grant(asked, 0, 0)

    def commit(self, grant: Grant, steps: int) -> None:
        self._total += steps

    def take(self) -> int | None:
        if not self._total or self._total < self._target(self.version):
            return None
        new, self._seen = self._total - self._seen, self._total
        return new

    def consumed(self) -> None:
        self.version += 1

    def _target(self, updates: int) -> int:
        # Steps before the first draw change nothing of the rate: the model begins behind them.
        return updates * self.config.steps_per_update


def make_table(config: TableConfig) -> ModelTable:
    """The model of the table that ``config`` describes."""
    return QueueModel(config) if config.sampler == "queue" else ReplayModel(config)
