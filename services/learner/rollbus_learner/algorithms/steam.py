"""Learning from data that STEAM has labelled (2606.29834): `recap` with the labels of another labeller.

Decisions without a label, such as the last K of each episode, are learned from with the label hidden.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollbus_core.feed import Feed
from rollbus_learner.algorithms import recap

if TYPE_CHECKING:
    from torch import nn

    from rollbus_wire.spec import EnvSpec

needs = ("torch",)


class Config(recap.Config):
    """Settings of learning from STEAM's labels."""

    name: str = "steam"


def make(config: Config, spec: EnvSpec, policy: nn.Module, feed: Feed) -> recap.Labelled:
    """The algorithm for one learner."""
    return recap.Labelled(config, spec, policy, feed)
