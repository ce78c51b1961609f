"""REINFORCE++ (Hu et al., 2501.03262), with the group's mean as an optional baseline.

The reward of an episode stands at its last token; the KL to the reference is part of the reward (k1,
without gradient). Advantages are sums over the tokens to come, whitened over the whole update.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from rollbus_core.config.models import option
from rollbus_core.feed import Feed
from rollbus_core.lazy import lazy_import
from rollbus_learner.algorithms._group import GroupAlgorithm
from rollbus_learner.algorithms._group_config import GroupConfig, Mean

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from rollbus_learner.algorithm import Batch
    from rollbus_wire.spec import EnvSpec
else:
    torch = lazy_import("torch")

needs = ("torch",)


class Config(GroupConfig):
    """Settings of REINFORCE++."""

    mean: ClassVar[Mean] = "token"

    name: str = "reinforce_pp"
    baseline: bool = option(True, "Subtract the mean return of the group before whitening.")
    kl_reward: float = option(
        0.0, "What a nat of KL to the policy that the run began with costs, per token.", ge=0
    )


class ReinforcePP(GroupAlgorithm):
    """Rewards at the last token, summed backwards over time."""

    config: Config

    def advantage(self, score: Tensor, complete: Tensor) -> Tensor:
        centred = score - score.mean(1, keepdim=True) if self.config.baseline else score
        return centred * complete

    @property
    def compares(self) -> bool:
        return self.config.kl_coef > 0 or self.config.kl_reward > 0

    def spread(self, batch: Batch, advantage: Tensor) -> Tensor:
        from rollbus_learner import masked

        mask = batch["token_mask"]
        reward = to_last_token(advantage, mask)
        if self.config.kl_reward:
            apart = batch["old_log_prob"] - batch["reference_log_prob"]
            reward = reward - self.config.kl_reward * masked.select(apart, mask)
        return masked.normalise(in_time(masked.reward_to_go(in_order(reward), in_order(mask)), mask), mask)


def to_last_token(value: Tensor, mask: Tensor) -> Tensor:
    """``value`` [N] at the last token of ``mask`` [T, N, L], 0 elsewhere."""
    flat = in_order(mask)
    last = flat & (flat.flip(0).cumsum(0).flip(0) == 1)
    return in_time(last * value, mask)


def in_order(x: Tensor) -> Tensor:
    """[T * L, N] of [T, N, L]: a row's tokens in the order of time."""
    return x.transpose(1, 2).flatten(0, 1)


def in_time(x: Tensor, like: Tensor) -> Tensor:
    """The inverse of `in_order`, in the shape of ``like`` [T, N, L]."""
    return x.reshape(like.shape[0], like.shape[2], like.shape[1]).transpose(1, 2)


def make(config: Any, spec: EnvSpec, policy: nn.Module, feed: Feed) -> ReinforcePP:
    """The algorithm for one learner."""
    return ReinforcePP(config, spec, policy, feed)
