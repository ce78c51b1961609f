"""Dr. GRPO (Liu et al., 2503.20783): GRPO without its two biases.

The advantage is the return minus the group's mean, not divided by the deviation, and the loss is a sum over
tokens divided by a constant, the longest possible episode, so that long failures are not punished less.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from rollbus_core.feed import Feed
from rollbus_learner.algorithms._group import GroupAlgorithm
from rollbus_learner.algorithms._group_config import GroupConfig, Mean

if TYPE_CHECKING:
    from torch import Tensor, nn

    from rollbus_wire.spec import EnvSpec

needs = ("torch",)


class Config(GroupConfig):
    """Settings of Dr. GRPO."""

    mean: ClassVar[Mean] = "constant"

    name: str = "dr_grpo"


class DrGRPO(GroupAlgorithm):
    """Centred within each group."""

    def advantage(self, score: Tensor, complete: Tensor) -> Tensor:
        from rollbus_accel.kernels.group_normalise import group_normalise

        return group_normalise(score, complete, scale=False)


def make(config: Any, spec: EnvSpec, policy: nn.Module, feed: Feed) -> DrGRPO:
    """The algorithm for one learner."""
    return DrGRPO(config, spec, policy, feed)
