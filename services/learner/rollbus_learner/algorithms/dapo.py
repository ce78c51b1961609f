"""DAPO (Yu et al., 2503.14476), with all four parts.

1. Clip-higher: the ratio may rise further than it may fall.
2. Dynamic sampling: groups that all fail or all succeed teach nothing and leave; sampling goes on at the
   same version until ``num_groups`` are there, ``max_resamples`` times; then training goes on with what
   there is.
3. Token-level loss: a mean over all tokens of the update, so that long episodes weigh by their length.
4. Soft over-long penalty: the last ``soft_tokens`` before the longest possible episode cost up to 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from rollbus_core.config.models import option
from rollbus_core.feed import Feed
from rollbus_core.lazy import lazy_import
from rollbus_learner.algorithms._group_config import MOST_LOSSES, GroupConfig, Mean
from rollbus_learner.algorithms.grpo import GRPO

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from rollbus_learner.algorithm import Batch, Progress, Roles
    from rollbus_learner.algorithms._episodes import Episodes
    from rollbus_wire.spec import EnvSpec
else:
    torch = lazy_import("torch")

needs = ("torch",)


class Config(GroupConfig):
    """Settings of DAPO."""

    mean: ClassVar[Mean] = "token"

    name: str = "dapo"
    clip_high: float | None = option(0.28, "... and at 1 + clip_high; empty: 1 + clip.", gt=0)
    max_resamples: int = option(4, "Further batches per update to replace uniform groups.", ge=0)
    soft_tokens: int = option(
        2, "The penalty begins so far before the longest episode; 0: off.", "tokens", ge=0
    )


class DAPO(GRPO):
    """GRPO on groups that differ, with a cost of length."""

    config: Config

    def label(self, batch: Batch, roles: Roles, progress: Progress) -> dict[str, float]:
        """Tells also the groups beyond ``num_groups``, and the share of episodes that pay for length."""
        metrics = super().label(batch, roles, progress)
        rows = batch["valid"].any(0)
        beyond = rows.numel() // self.config.group_size - self.config.num_groups
        pays = (self.cost(batch) < 0) & rows
        share = float(pays.sum()) / max(1, int(rows.sum()))
        return metrics | {"groups_resampled": float(max(0, beyond)), "overlong": share}

    def scored(self, batch: Batch, episodes: Episodes) -> Tensor:
        return episodes.score + self.cost(batch)

    def cost(self, batch: Batch) -> Tensor:
        """What each row's episode pays for its length, float32 [N]."""
        from rollbus_learner.algorithms import _episodes

        longest = batch["token_mask"].shape[0] * batch["token_mask"].shape[2]
        return overlong(_episodes.lengths(batch), longest, self.config.soft_tokens)

    def keeps(self, score: Tensor) -> Tensor:
        return differ(score)

    def wants_more(self, batch: Batch, num_batches: int) -> bool:
        """Whether groups are missing and the budget of this update lasts."""
        from rollbus_learner.algorithms import _episodes

        if num_batches > self.config.max_resamples:
            return False
        episodes = _episodes.whole(batch, self.config.group_size, MOST_LOSSES)
        score = episodes.score.reshape(-1, self.config.group_size)
        usable = differ(score) & episodes.complete.reshape(score.shape).all(1)
        return int(usable.sum()) < self.config.num_groups


def differ(score: Tensor) -> Tensor:
    """Bool [M]: groups [M, G] whose members do not all score alike."""
    return score.amax(1) > score.amin(1)


def overlong(length: Tensor, longest: int, soft: int) -> Tensor:
    """0 up to ``longest - soft`` tokens, then linear down to -1 at ``longest`` (the paper's equation 13)."""
    if not soft:
        return torch.zeros(length.shape, device=length.device)
    return ((longest - soft - length.float()) / soft).clamp(-1.0, 0.0)


def make(config: Any, spec: EnvSpec, policy: nn.Module, feed: Feed) -> DAPO:
    """The algorithm for one learner."""
    return DAPO(config, spec, policy, feed)
