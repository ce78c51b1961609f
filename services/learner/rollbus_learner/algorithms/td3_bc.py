"""TD3+BC: TD3 on a data set, with cloning in the policy's loss (Fujimoto and Gu, 2106.06860).

Where it differs from the authors' code: observations are normalised if ``policy.normalise_obs`` says so, by
statistics of the batches as they come; rewards are as they are in the data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rollbus_core.config.models import option
from rollbus_core.feed import Feed
from rollbus_learner.algorithm import Loss
from rollbus_learner.algorithms import td3
from rollbus_learner.algorithms._actor_critic import CriticConfig, values
from rollbus_learner.algorithms._offline import Offline, OfflineConfig
from rollbus_learner.algorithms._replay import check_delay

if TYPE_CHECKING:
    from torch import nn

    from rollbus_learner.algorithm import Batch, Roles
    from rollbus_wire.spec import EnvSpec

needs = ("torch",)


class Config(td3.Smoothing, CriticConfig, OfflineConfig):
    """Settings of TD3+BC."""

    requires: ClassVar[frozenset[str]] = frozenset({"deterministic"})

    name: str = "td3_bc"
    alpha: float = option(2.5, "Weight of Q against cloning, once Q is divided by its mean size.", ge=0)

    def feed(self, *, num_envs: int, num_slices: int, deterministic: bool) -> Feed:
        """Draws of the data; the policy must come to its turn in every update."""
        check_delay(self.policy_delay, self.steps_per_update)
        return super().feed(num_envs=num_envs, num_slices=num_slices, deterministic=deterministic)


class TD3BC(Offline, td3.TD3):
    """`TD3` whose policy also stays near the data."""

    def policy_loss(self, roles: Roles, batch: Batch) -> Loss:
        """``-lambda Q(s, pi(s)) + |pi(s) - a|^2`` with ``lambda = alpha / mean |Q|``."""
        from rollbus_learner import masked

        action, shown = td3.action(roles["policy"], batch, ""), self.taken(roles, batch)
        q = values(roles, "critic", batch, action, "obs/")[0]
        valid = masked.valid_mask(batch)
        size, num = masked.total(q.detach().abs(), valid)
        weight = self.config.alpha / (size / num).clamp(min=1e-8)
        cloning = ((action - shown) ** 2).flatten(1).mean(1)
        return Loss(
            {"policy_loss": masked.total(cloning - weight * q, valid)},
            {"cloning_loss": masked.total(cloning.detach(), valid)},
        )


def make(config: Config, spec: EnvSpec, policy: nn.Module, feed: Feed) -> TD3BC:
    """The algorithm for one learner."""
    return TD3BC(config, spec, policy, feed)
