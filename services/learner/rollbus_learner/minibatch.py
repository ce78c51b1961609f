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
    """All minibatches of all epochs.

    From [T, N] columns: [B, ...] of the valid samples in random order, or with ``plan.whole_rows``
    whole rows [T, n, ...] with ``valid`` and ``state`` [n, S]. With ``plan.ordered``, [S, ...]
    columns (or whole rows) are cut in their order. Sizes differ by one at most: a last minibatch of a
    few samples would take a full step on noise. Observations [T+1, N] are cut to the first T. Where every
    sample is valid there is no ``valid`` column. Further streams are cut, in their order, into as many parts.
    """
    main, further = _streams(batch)
    epochs = (
        _in_order(main, plan) if plan.ordered
        else _rows(main, plan, generator) if plan.whole_rows
        else _samples(main, plan, generator)
    )  # fmt: skip
    for parts in epochs:
        if not further:
            yield from parts
            continue
        beside = [list(_cut(_without_mask(columns), len(parts))) for columns in further]
        for index, part in enumerate(parts):
            for cut in beside:
                part |= cut[index]
            yield part


def _streams(batch: Batch) -> tuple[Batch, list[Batch]]:
    """The main stream, and the columns of each other one, still with their prefix."""
    names = [name.removesuffix("valid") for name in batch if name.endswith("/valid")]
    if not names:
        return batch, []
    further = [{n: column for n, column in batch.items() if n.startswith(prefix)} for prefix in names]
    return {n: c for n, c in batch.items() if not n.startswith(tuple(names))}, further


def _without_mask(columns: Batch) -> Batch:
    """``columns`` of one stream [S, ...]; without its mask if every sample is valid."""
    mask = next(name for name in columns if name.endswith("/valid"))
    num, whole = len(columns[mask]), bool(columns[mask].all())
    return {n: c for n, c in columns.items() if len(c) == num and not (whole and n == mask)}


def _in_order(batch: Batch, plan: Plan) -> Iterator[list[Batch]]:
    if plan.whole_rows:
        yield from _rows_in_order(batch, plan)
        return
    num = len(batch["valid"])
    steps = {name: column for name, column in batch.items() if _sampled(name) and len(column) == num}
    if bool(batch["valid"].all()):
        del steps["valid"]
    for _ in range(plan.epochs):
        yield list(_cut(steps, _num_batches(num, plan.batch_size, num)))


def _rows_in_order(batch: Batch, plan: Plan) -> Iterator[list[Batch]]:
    """Rows [T, S, ...], ``plan.batch_size`` of them to a minibatch."""
    columns, rows = _decisions(batch), batch["valid"].shape[1]
    num_batches = _num_batches(rows, plan.batch_size, rows)
    of_rows = {name: batch[name] for name in _PER_ROW if name in batch}
    for _ in range(plan.epochs):
        yield [
            part | states for part, states in zip(_cut(columns, num_batches, 1), _cut(of_rows, num_batches))
        ]


def _samples(batch: Batch, plan: Plan, generator: torch.Generator) -> Iterator[list[Batch]]:
    columns = {name: column.flatten(0, 1) for name, column in _read(batch, plan).items() if name != "valid"}
    samples = batch["valid"].flatten().nonzero()[:, 0]
    num_batches = _num_batches(len(samples), plan.batch_size, len(samples))
    for _ in range(plan.epochs):
        order = _shuffled(samples, generator)
        yield list(_cut({name: c.index_select(0, order) for name, c in columns.items()}, num_batches))


def _rows(batch: Batch, plan: Plan, generator: torch.Generator) -> Iterator[list[Batch]]:
    columns, rows = _read(batch, plan), batch["valid"].any(0).nonzero()[:, 0]
    of_rows = {name: batch[name] for name in _PER_ROW if name in batch}
    num_batches = _num_batches(int(batch["valid"].sum()), plan.batch_size, len(rows))
    for _ in range(plan.epochs):
        order = _shuffled(rows, generator)
        parts = _cut({name: c.index_select(1, order) for name, c in columns.items()}, num_batches, 1)
        states = _cut({name: c.index_select(0, order) for name, c in of_rows.items()}, num_batches)
        yield [part | state for part, state in zip(parts, states)]


def _shuffled(items: Tensor, generator: torch.Generator) -> Tensor:
    return items[torch.randperm(len(items), generator=generator).to(items.device)]


def _read(batch: Batch, plan: Plan) -> Batch:
    """`_decisions` that a step reads."""
    return {name: column for name, column in _decisions(batch).items() if name not in plan.unread}


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


def _cut(columns: Batch, num_batches: int, dim: int = 0) -> Iterator[Batch]:
    if not num_batches:
        return
    cuts = {name: column.tensor_split(num_batches, dim) for name, column in columns.items()}
    for index in range(num_batches):
        yield {name: cut[index] for name, cut in cuts.items()}


def _num_batches(num: int, batch_size: int, most: int) -> int:
    """How many minibatches of about ``batch_size`` samples; none of nothing."""
    if not num:
        return 0
    return max(1, min(most, round(num / batch_size) if batch_size else 1))
