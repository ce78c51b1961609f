"""HG-DAgger (Kelly et al., 1810.02890): learn from the moments in which a person took over.

The policy acts; where it strays the expert takes over, and only those decisions, marked by their source, join
the demonstrations. Here the expert is the environment's, which takes over where an element of the policy's
action is further than ``gate`` (of half the bounds' width) from its own; a person at a robot does the same
through the ``source`` of actions. Differences: those of `dagger`; the paper's doubt estimate, which sets a
threshold for the time after training, is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rollbus_core.config.models import option
from rollbus_core.feed import ExpertConfig, Feed
from rollbus_learner.algorithms import dagger

if TYPE_CHECKING:
    from torch import nn

    from rollbus_wire.spec import EnvSpec

needs = ("torch",)


class Config(dagger.Config):
    """Settings of HG-DAgger; those of DAgger with a gate in place of a schedule."""

    name: str = "hg_dagger"
    expert_share: float = option(0.0, "Part of the decisions that the expert takes anyway.", ge=0, le=1)
    gate: float = option(
        0.25,
        "Distance of the actions at which the expert takes over, in parts of half the bounds' width.",
        gt=0,
    )

    def expert(self) -> ExpertConfig:
        """When the expert acts."""
        return ExpertConfig(share=self.expert_share, decay=self.expert_decay, gate=self.gate)


class HGDAgger(dagger.DAgger):
    """Demonstrations and interventions."""

    learned_sources: ClassVar[tuple[str, ...]] = ("expert", "human")


def make(config: Config, spec: EnvSpec, policy: nn.Module, feed: Feed) -> HGDAgger:
    """The algorithm for one learner."""
    return HGDAgger(config, spec, policy, feed)
