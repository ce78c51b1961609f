"""Group relative policy optimisation (Shao et al., 2402.03300, outcome supervision).

The advantage of an episode is its return relative to the others of its group, in units of their deviation
(divisor n - 1); every token of it gets that. Each episode counts as the mean of its tokens. Where it
differs from the paper: the KL is off unless ``kl_coef`` is set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollbus_core.feed import Feed
from rollbus_learner.algorithms._group import GroupAlgorithm
from rollbus_learner.algorithms._group_config import GroupConfig

if TYPE_CHECKING:
    from torch import Tensor, nn

    from rollbus_wire.spec import EnvSpec

needs = ("torch",)


class Config(GroupConfig):
    """Settings of GRPO."""

    name: str = "grpo"


class GRPO(GroupAlgorithm):
    """Normalised within each group; zeros where all members score alike."""

    def advantage(self, score: Tensor, complete: Tensor) -> Tensor:
        from rollbus_accel.kernels.group_normalise import group_normalise

        return group_normalise(score, complete)


def make(config: Any, spec: EnvSpec, policy: nn.Module, feed: Feed) -> GRPO:
    """The algorithm for one learner."""
    return GRPO(config, spec, policy, feed)
