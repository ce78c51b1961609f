"""Group sequence policy optimisation (Zheng et al., 2507.18071).

As GRPO, but importance ratio and clipping are of the whole episode: the geometric mean of its tokens'
ratios. It moves far less than a token's, so the clips are a few 1e-4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from rollbus_core.config.models import option
from rollbus_core.feed import Feed
from rollbus_learner.algorithms._group_config import GroupConfig, Ratio
from rollbus_learner.algorithms.grpo import GRPO

if TYPE_CHECKING:
    from torch import nn

    from rollbus_wire.spec import EnvSpec

needs = ("torch",)


class Config(GroupConfig):
    """Settings of GSPO."""

    ratio: ClassVar[Ratio] = "sequence_mean"

    name: str = "gspo"
    clip: float = option(3e-4, "The ratio is clipped at 1 - clip.", gt=0, lt=1)
    clip_high: float | None = option(4e-4, "... and at 1 + clip_high; empty: 1 + clip.", gt=0)


def make(config: Any, spec: EnvSpec, policy: nn.Module, feed: Feed) -> GRPO:
    """The algorithm for one learner."""
    return GRPO(config, spec, policy, feed)
