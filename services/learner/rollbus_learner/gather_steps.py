"""Single steps for replay: [S, ...], S = num_batches * batch_size, in the order of the draw.

Everything is gathered by index arrays, one call per slab and column: thousands of chunks cost as
much as a few.
"""

from __future__ import annotations

import numpy as np

from rollbus_learner.drawn import Chunks, Part
from rollbus_learner.expert_chunks import ExpertChunks
from rollbus_learner.hindsight import Relabel
from rollbus_learner.returns import Returns
from rollbus_learner.slab_views import Buffers, Columns, Slabs
from rollbus_learner.step_target import Target, put, put_following
from rollbus_learner.stretches import Stretches
from rollbus_wire.errors import StaleRead
from rollbus_wire.messages import Batch

#: Of a stretch of decisions those of its last one count.
_OF_END = ("terminated", "truncated", "interrupted", "final_slot")
#: Columns that are not of one decision.
_PER_ROW = frozenset({"lengths", "last_step", "last_value", "carry"})


def gather(
    slabs: Slabs, message: Batch, buffers: Buffers, n_step: int = 1,
    relabel: Relabel | None = None, expert: ExpertChunks | None = None,
) -> tuple[Columns, int]:  # fmt: skip
    """The steps that ``message`` draws, and how many of its chunks were not readable.

    ``obs/*`` and ``next_obs/*`` [S, ...] (with frame stacks [S, K, ...]), where the episode ended the
    latter is the final observation; the decision columns [S, ...]; ``valid`` bool [S]: not
    interrupted, readable, and with its final observation if truncated. ``n_step``: see `Feed`.
    ``relabel`` gives other goals, then come the returns; ``expert`` adds what it taught.

    Raises `StaleRead` if no sample is readable.
    """
    chunks = Chunks(slabs, message)
    drawn = chunks.drawn()
    num = len(chunks.chunk)
    target = Target(num, sum(len(part.place) for part in drawn) == num, buffers)
    for part in drawn:
        _copy(part, target)
    if n_step > 1 or relabel is not None:
        in_reach = _ahead(chunks, drawn, target, message.sequence, n_step, relabel)
    else:
        for part in drawn:
            _copy_following(part, target, own=True)
        in_reach = None
    if expert is not None:
        for part in drawn:
            expert(part, target)
    fresh = chunks.readable()[chunks.chunk]
    readable = fresh if in_reach is None else fresh & in_reach.readable()
    if not readable.any():
        raise StaleRead(
            f"none of {readable.size} samples is readable any more: "
            "the store freed their chunks before they were read"
        )
    batch = target.batch
    if message.step is not None and message.probability is not None:
        batch["drawn"], batch["probability"] = message.step.ravel(), message.probability.ravel()
    for name, column in (message.late or {}).items():
        batch[f"late/{name}"] = column.ravel()
    lost = batch["truncated"] & ~batch["terminated"] & (batch["final_slot"] < 0)
    batch["valid"] = readable & ~batch["interrupted"] & ~lost
    return batch, len(np.unique(chunks.chunk[~readable]))


def _ahead(
    chunks: Chunks, drawn: list[Part], target: Target, number: int, n_step: int, relabel: Relabel | None
) -> Stretches:
    """What needs the decisions that follow: new goals, returns, and where the transitions end."""
    if not drawn:
        return Stretches(chunks, drawn, n_step)
    reach = n_step if relabel is None else max(n_step, relabel.horizon)
    stretches = Stretches(chunks, drawn, reach)
    returns = Returns(stretches, n_step, target.batch["reward"].shape[-1])
    goals = None if relabel is None else relabel(stretches, returns, target, number)
    if n_step > 1:
        reward, steps = returns.joined()
        target.column("n_step_reward", reward.shape[1:], reward.dtype)[...] = reward
        target.column("n_step_num", (), steps.dtype)[...] = steps
    there = np.flatnonzero(returns.num)
    for end in stretches.parts(there, returns.num[there] - 1):
        for name in _OF_END:
            put(target.batch[name], end, name, end.at(end.time))
        _copy_following(end, target, own=n_step == 1)
    if goals is not None:
        goals.put(target, drawn[0].depth)
    return stretches


def _copy(part: Part, target: Target) -> None:
    """Gather the columns of the drawn decisions into their places."""
    begun = _since_start(part)
    for name, column in part.view.columns.items():
        if name.startswith("obs/"):
            inner = column.shape[3:] if part.depth == 1 else (part.depth, *column.shape[3:])
            obs = target.column(name, inner, column.dtype)
            if part.depth == 1:
                put(obs, part, name, part.at(part.time))
            else:
                _stack(obs, part, name, begun)
        elif (name == "final_slot" or not name.startswith("final_")) and name not in _PER_ROW:
            put(target.column(name, column.shape[3:], column.dtype), part, name, part.at(part.time))


def _copy_following(end: Part, target: Target, *, own: bool) -> None:
    """``next_obs/*`` after the decisions ``end``; ``own``: they are the drawn ones."""
    for name in [name for name in end.view.columns if name.startswith("obs/")]:
        obs = target.batch[name]
        following = newest = target.column(f"next_{name}", obs.shape[1:], obs.dtype)
        if end.depth > 1:
            newest = following[:, -1]
            _older(obs if own else None, following, end, name)
        put_following(newest, end, name)


def _stack(obs: np.ndarray, part: Part, name: str, begun: np.ndarray) -> None:
    """All frames of ``obs`` [S, K, ...]."""
    last = part.time + part.depth - 1
    for place in range(part.depth):
        age = np.minimum(part.depth - 1 - place, begun)
        put(obs[:, place], part, name, part.at(last - age))


def _older(obs: np.ndarray | None, following: np.ndarray, end: Part, name: str) -> None:
    """The K-1 older frames of ``following`` [S, K, ...]: the newer at ``end``, which ``obs`` may hold."""
    if obs is None:
        _stack(following, end, name, _since_start(end))
        obs = following
    for place in range(1, end.depth):
        following[end.place, place - 1] = obs[end.place, place]


def _since_start(part: Part) -> np.ndarray:
    """int [s]: decisions since the first of the episode, up to K-1 (more count as K-1)."""
    begun = np.full(len(part.place), part.depth - 1)
    step = part.view.columns["step"]
    for age in reversed(range(part.depth - 1)):
        time = part.time - age
        begun[(time >= 0) & (step[part.cell, np.maximum(time, 0), part.row] == 0)] = age
    return begun
