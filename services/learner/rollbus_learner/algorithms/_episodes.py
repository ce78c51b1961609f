"""Whole episodes of grouped rows: which decisions they are, their scores, their tokens.

Symbols: T decisions, N rows, G members of a group, L tokens of a decision (1 where a decision is one choice).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from rollbus_learner import masked

if TYPE_CHECKING:
    from rollbus_learner.algorithm import Batch


@dataclass
class Episodes:
    """The one episode of each row that counts: its last one."""

    #: Decisions of it, bool [T, N]; none in a row without a whole episode.
    mask: Tensor
    #: Undiscounted return, float32 [N].
    score: Tensor
    #: Whether all members of the row's group have a whole episode, bool [N].
    complete: Tensor


def whole(batch: Batch, group_size: int, most_losses: int) -> Episodes:
    """The episodes of ``batch`` [T, N], G neighbouring rows being a group.

    An episode is whole if its first decision and its end are there and it was not interrupted. A row
    interrupted more than ``most_losses`` times began with another seed than its group. Failures and
    episodes that ran out of time are outcomes and stay.
    """
    valid = batch["valid"] & ~batch["interrupted"]
    place = torch.arange(len(valid), device=valid.device)[:, None]
    ends = valid & (batch["terminated"] | batch["truncated"])
    last = torch.where(ends, place, -1).amax(0)
    episode = batch["episode"].gather(0, last.clamp(min=0)[None])
    mask = valid & (batch["episode"] == episode) & (place <= last)
    found = (mask & (batch["step"] == 0)).any(0)
    found &= (batch["valid"] & batch["interrupted"]).sum(0) <= most_losses
    mask &= found
    score = masked.select(batch["reward"].float().sum(-1), mask).sum(0)
    complete = found.reshape(-1, group_size).all(1).repeat_interleave(group_size)
    return Episodes(mask, score, complete)


def add_tokens(policy: Any, batch: Batch) -> None:
    """Add token_mask bool and old_log_prob [T, N, L]; ``valid`` counts already."""
    valid = batch["valid"]
    if "token_log_prob" in batch:
        batch["token_mask"] = policy.token_mask(batch["action"]) & valid[..., None]
        batch["old_log_prob"] = batch["token_log_prob"]
    else:
        batch["token_mask"] = valid[..., None]
        batch["old_log_prob"] = batch["log_prob"][..., None]


def token_log_prob(policy: Any, batch: Batch) -> Tensor:
    """The policy's log-probabilities [T, n, L] of the tokens of ``batch`` [T, n]."""
    return scores(policy, batch)["token_log_prob"]


def scores(policy: Any, batch: Batch, *more: str) -> dict[str, Tensor]:
    """What `token_log_prob` gives, and ``more``, from one forward pass."""
    name = "token_log_prob" if "token_log_prob" in batch else "log_prob"
    found = dict(cast("dict[str, Tensor]", policy(batch, (name, *more))))
    if name == "log_prob":
        found["token_log_prob"] = found["log_prob"][..., None]
    return found


def lengths(batch: Batch) -> Tensor:
    """Tokens of each row's episode, int64 [N]."""
    return batch["token_mask"].sum((0, 2))
