"""Learning from labelled data, good and poor, with a policy that is told which (RECAP, 2511.14759, step 4).

The labels are those of a stage `label` (`rollbus label`). The policy is cloned on all data, told the label of
each decision as an observation; a part of the labels is hidden, so that it knows the unconditional action,
too (classifier-free guidance, 2207.12598; CFGRL, 2505.23458). When acting it is told "good". Where it
differs: the label is a class beside the observations, not text; ``policy.guidance`` is 1 by default.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from rollbus_core.config.models import option
from rollbus_core.feed import Feed
from rollbus_core.lazy import lazy_import
from rollbus_learner.algorithm import Loss
from rollbus_learner.algorithms import sft
from rollbus_learner.algorithms._cloning import labels_of
from rollbus_policies._condition import CONDITION, GOOD, POOR, UNKNOWN
from rollbus_wire.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from rollbus_learner.algorithm import Batch, Roles
    from rollbus_policies.base import Policy
    from rollbus_wire.spec import EnvSpec
else:
    torch = lazy_import("torch")

needs = ("torch",)


class Config(sft.Config):
    """Settings of learning from labels; those of supervised learning beside them."""

    needs_label: ClassVar[bool] = True

    name: str = "recap"
    label_dropout: float = option(0.2, "Part of the labels that is hidden.", ge=0, lt=1)


class Labelled(sft.SFT):
    """Cloning of a policy that is told the label."""

    def __init__(self, config: Config, spec: EnvSpec, policy: nn.Module, feed: Feed) -> None:
        super().__init__(config, spec, policy, feed)
        if CONDITION not in getattr(policy, "keys", ()):
            raise ConfigError(
                f"algorithm.name: {config.name} needs a policy that is told the label; set policy.condition: "
                "label"
            )

    def loss(self, roles: Roles, batch: Batch) -> Loss:
        """As `sft`, with the labels of the batch."""
        label = labels_of(batch, self.config.name)
        told = torch.where(label > 0, GOOD, POOR)
        hidden = torch.rand(label.shape, device=label.device) < self.config.label_dropout
        told = torch.where(hidden | (label < 0), UNKNOWN, told)
        frames = cast("Policy", self.policy).spec.frame_stack
        if frames > 1:
            told = told.unsqueeze(-1).expand(*told.shape, frames)
        return super().loss(roles, {**batch, f"obs/{CONDITION}": told})


def make(config: Config, spec: EnvSpec, policy: nn.Module, feed: Feed) -> Labelled:
    """The algorithm for one learner."""
    return Labelled(config, spec, policy, feed)
