"""Minibatches of a batch: one gather per epoch, then views.

Symbols: T decisions, N rows, S = valid samples, B samples of a minibatch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from rollbus_learner.algorithm import Batch, Plan

#: Of a row as a whole, [N, ...]; they go along only where rows stay whole.
_PER_ROW = ("state",)
#: Of neither samples nor rows that a loss sees.
_NOT_SAMPLES = ("lengths", "final_", "last_")


def minibatches(batch: Batch, plan: Plan, generator: torch.Generator) -> Iterator[Batch]:
    """All minibatches of one epoch.

    From [T, N] columns: [B, ...] of the valid samples in random order, or with ``plan.whole_rows``
    whole rows [T, n, ...] with ``valid`` and ``state`` [n, S]. With ``plan.ordered``, [S, ...]
    columns are cut in their order. Sizes differ by one at most: a last minibatch of a few samples
    would take a full step on noise. Observations [T+1, N] are cut to the first T.
    """
    if plan.ordered:
        num = len(batch["valid"])
        steps = {name: column for name, column in batch.items() if _sampled(name) and len(column) == num}
        yield from _cut(steps, num, plan.batch_size)
        return
    columns = _decisions(batch)
    valid = batch["valid"]
    device = valid.device
    if plan.whole_rows:
        rows = valid.any(0).nonzero()[:, 0]
        order = rows[torch.randperm(len(rows), generator=generator).to(device)]
        chosen = {name: column.index_select(1, order) for name, column in columns.items()}
        num_batches = _num_batches(int(valid.sum()), plan.batch_size, len(rows))
        if not num_batches:
            return
        cuts = {name: column.tensor_split(num_batches, 1) for name, column in chosen.items()}
        for name in _PER_ROW:
            if name in batch:
                cuts[name] = batch[name].index_select(0, order).tensor_split(num_batches, 0)
        for index in range(num_batches):
            yield {name: cut[index] for name, cut in cuts.items()}
        return
    samples = valid.flatten().nonzero()[:, 0]
    order = samples[torch.randperm(len(samples), generator=generator).to(device)]
    flat = {name: column.flatten(0, 1).index_select(0, order) for name, column in columns.items()}
    yield from _cut(flat, len(samples), plan.batch_size)


def _decisions(batch: Batch) -> Batch:
    """The columns [T, N, ...] of ``batch``, observations without their last."""
    length, rows = batch["valid"].shape[:2]
    found: Batch = {}
    for name, column in batch.items():
        if name.startswith("obs/"):
            found[name] = column[:length]
        elif _sampled(name) and column.shape[:2] == (length, rows):
            found[name] = column
    return found


def _sampled(name: str) -> bool:
    return name == "final_slot" or not name.startswith(_NOT_SAMPLES + _PER_ROW)


def _cut(columns: Batch, num: int, batch_size: int) -> Iterator[Batch]:
    num_batches = _num_batches(num, batch_size, num)
    if not num_batches:
        return
    cuts: dict[str, tuple[Tensor, ...]] = {
        name: column.tensor_split(num_batches) for name, column in columns.items()
    }
    for index in range(num_batches):
        yield {name: cut[index] for name, cut in cuts.items()}


def _num_batches(num: int, batch_size: int, most: int) -> int:
    """How many minibatches of about ``batch_size`` samples; none of nothing."""
    if not num:
        return 0
    return max(1, min(most, round(num / batch_size) if batch_size else 1))
