"""From a store's `Batch` message to a map of tensors: one copy, slab -> batch.

The store may free a cell while it is read, so generations are compared after copying. A batch is
valid until the next call: its arrays are used again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch

from rollbus_core.feed import Hindsight
from rollbus_core.slabs import SlabFolder
from rollbus_learner import gather_chunks, gather_rows, gather_steps
from rollbus_learner.expert_chunks import ExpertChunks
from rollbus_learner.fresh_episodes import FreshEpisodes
from rollbus_learner.hindsight import Relabel
from rollbus_learner.slab_views import Buffers, Columns, Slabs
from rollbus_policies._executed import executed
from rollbus_wire import messages
from rollbus_wire.errors import StaleRead

if TYPE_CHECKING:
    from rollbus_learner.algorithm import Batch


class SlabReader:
    """Reads batches out of the slabs of ``folder``.

    ``stale_chunks`` counts chunks that were gone or overwritten before they were read, ``corrupt_chunks``
    those whose bytes are not the ones that were committed.
    """

    def __init__(
        self,
        folder: SlabFolder,
        n_step: int = 1,
        hindsight: Hindsight | None = None,
        *,
        sequences: bool = False,
        expert: ExpertChunks | None = None,
    ) -> None:  # fmt: skip
        """``n_step``: decisions of a transition; ``hindsight``: draws get other goals.

        ``sequences``: a draw gives the rows of its steps, whole. ``expert``: draws get what it taught.
        """
        relabel = None if hindsight is None else Relabel(hindsight)
        self._gather: Callable[..., tuple[Columns, int]] = (
            gather_rows.gather if sequences
            else partial(gather_steps.gather, n_step=n_step, relabel=relabel, expert=expert)
        )  # fmt: skip
        self.slabs = Slabs(folder)
        self._buffers = Buffers()
        self._fresh = FreshEpisodes()
        self.stale_chunks = self.corrupt_chunks = 0
        #: Of the last queue batch: place among its chunks -> why it was left out.
        self.unread: dict[int, str] = {}

    def read(self, message: messages.Batch) -> Batch:
        """The batch as CPU tensors: whole chunks, or steps if ``message`` holds a draw.

        Raises `StaleRead` if no chunk of it is readable.
        """
        self.unread = {}
        if message.chunk is None:
            return _tensors(self._whole_chunks(message))
        columns, stale = self._gather(self.slabs, message, self._buffers)
        columns |= self._fresh.take(self.slabs, message)
        self.stale_chunks += stale
        return _tensors(columns)

    def _whole_chunks(self, message: messages.Batch) -> Columns:
        columns, self.unread = gather_chunks.gather(self.slabs, message.chunks, self._buffers)
        reasons = list(self.unread.values())
        self.stale_chunks += reasons.count("stale")
        self.corrupt_chunks += reasons.count("corrupt")
        if columns is None:
            raise StaleRead(
                f"none of {len(reasons)} chunks is readable any more ({', '.join(sorted(set(reasons)))}): "
                "the store freed them before they were read, or their bytes have changed"
            )
        return columns


def _tensors(columns: Columns) -> Batch:
    batch = {name: torch.from_numpy(column) for name, column in columns.items()}
    log_prob = batch.get("log_prob")
    if log_prob is not None and log_prob.ndim > batch["num_steps"].ndim:
        # One per action of a decision: those that were executed count.
        batch["log_prob"] = executed(log_prob, batch["num_steps"])
    return batch
