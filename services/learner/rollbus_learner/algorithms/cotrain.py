"""Co-training: PPO and cloning of demonstrations at once, on the same network (`_cotraining`).

``ppo`` with ``sft_weight``; other algorithms that learn from what was just collected take the same setting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollbus_core.config.models import option
from rollbus_core.feed import Feed
from rollbus_learner.algorithms import ppo

if TYPE_CHECKING:
    from torch import nn

    from rollbus_wire.spec import EnvSpec

needs = ("torch",)


class Config(ppo.Config):
    """Settings of co-training: those of PPO."""

    name: str = "cotrain"
    sft_weight: float = option(
        0.1, "Weight of cloning demonstrations (data.sources) beside the algorithm's own loss; 0: none.", ge=0
    )


def make(config: Config, spec: EnvSpec, policy: nn.Module, feed: Feed) -> ppo.PPO:
    """The algorithm for one learner."""
    return ppo.PPO(config, spec, policy, feed)
