"""REINFORCE leave-one-out (Ahmadian et al., 2402.14740).

The baseline of an episode is the mean return of the others of its group. The whole episode is one action:
the ratio is that of its probability, and its loss is not divided by its length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from rollbus_core.feed import Feed
from rollbus_learner.algorithms._group import GroupAlgorithm
from rollbus_learner.algorithms._group_config import GroupConfig, Ratio

if TYPE_CHECKING:
    from torch import Tensor, nn

    from rollbus_wire.spec import EnvSpec

needs = ("torch",)


class Config(GroupConfig):
    """Settings of RLOO."""

    ratio: ClassVar[Ratio] = "sequence"

    name: str = "rloo"


class RLOO(GroupAlgorithm):
    """``S_i`` minus the mean of the others."""

    def advantage(self, score: Tensor, complete: Tensor) -> Tensor:
        others = score.shape[1] - 1
        return (score - (score.sum(1, keepdim=True) - score) / others) * complete


def make(config: Any, spec: EnvSpec, policy: nn.Module, feed: Feed) -> RLOO:
    """The algorithm for one learner."""
    return RLOO(config, spec, policy, feed)
