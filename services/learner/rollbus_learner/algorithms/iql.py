"""Implicit Q-learning from data alone (Kostrikov et al., 2110.06169).

V learns an upper expectile of Q over the data's actions, the policy clones actions with weight
``exp(beta (Q' - V))``, Q learns from V; no action outside the data is ever valued. The policy's loss is its
own ``cloning_loss``: minus the log-prob where it has one, so that flow and diffusion policies, which have
none, learn alike. Where it differs from the authors' code: the cosine schedule of the policy's step size is
an option; rewards are as they are in the data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from rollbus_core.config.models import option
from rollbus_core.feed import Feed
from rollbus_core.lazy import lazy_import
from rollbus_learner.algorithm import Loss, Role, Step
from rollbus_learner.algorithms._actor_critic import ActorCritic, CriticConfig, values
from rollbus_learner.algorithms._offline import Offline, OfflineConfig

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from rollbus_learner.algorithm import Batch, Roles
    from rollbus_policies.base import Policy
    from rollbus_wire.spec import EnvSpec
else:
    torch = lazy_import("torch")

needs = ("torch",)


class Config(CriticConfig, OfflineConfig):
    """Settings of IQL."""

    requires: ClassVar[frozenset[str]] = frozenset({"cloning_loss"})
    masks_padding: ClassVar[bool] = True

    name: str = "iql"
    expectile: float = option(0.7, "Expectile of Q that V learns; 0.5: its mean.", gt=0, lt=1)
    beta: float = option(3.0, "How much an advantage raises a decision's weight.", ge=0)
    max_weight: float = option(100.0, "Largest weight of a decision.", gt=0)


class IQL(Offline, ActorCritic):
    """V, policy, Q and the slow Q."""

    def further_roles(self) -> dict[str, Role]:
        """The value function."""
        from rollbus_policies._critics import make_q

        stack = cast("Policy", self.policy).spec.frame_stack
        return {"value": Role(make_q(self.config, self.spec, 1, stack, num_actions=0))}

    def steps(self) -> list[Step]:
        """V, then the policy, then Q."""
        config = self.config
        rate = config.critic_learning_rate
        value = Step("value", ("value",), self.value_loss, rate, clip=config.max_grad_norm)
        return [value, self.policy_step(), self.critic_step()]

    def following(self, roles: Roles, batch: Batch) -> Tensor:
        """V(s')."""
        return state_value(roles, batch, "next_obs/")

    def value_loss(self, roles: Roles, batch: Batch) -> Loss:
        """``|tau - 1(u < 0)| u^2`` with ``u = min Q'(s, a) - V(s)``."""
        from rollbus_learner import masked

        value = state_value(roles, batch, "obs/")
        with torch.no_grad():
            q = self.judged(roles, batch)
        above, valid = q - value, masked.valid_mask(batch)
        weight = torch.where(above < 0, 1.0 - self.config.expectile, self.config.expectile)
        return Loss(
            {"value_loss": masked.total(weight * above**2, valid)},
            {"value": masked.total(value.detach(), valid)},
        )

    def policy_loss(self, roles: Roles, batch: Batch) -> Loss:
        """``min(exp(beta (min Q' - V)), max_weight)`` times the cloning loss."""
        from rollbus_learner import masked

        with torch.no_grad():
            advantage = self.judged(roles, batch) - state_value(roles, batch, "obs/")
            weight = (self.config.beta * advantage).exp().clamp(max=self.config.max_weight)
        # It takes what was executed, in the environment's units.
        shown = {**batch, "action": batch["env_action"]}
        cloning = roles["policy"](shown, ("cloning_loss",))["cloning_loss"]
        valid = masked.valid_mask(batch)
        return Loss(
            {"policy_loss": masked.total(weight * cloning, valid)},
            {
                "cloning_loss": masked.total(cloning.detach(), valid),
                "weight": masked.total(weight, valid),
            },
        )

    def judged(self, roles: Roles, batch: Batch) -> Tensor:
        """``min Q'(s, a)`` [B] of the data's action."""
        return values(roles, "target", batch, self.taken(roles, batch), "obs/").amin(0)


def state_value(roles: Roles, batch: Batch, prefix: str) -> Tensor:
    """V [B]."""
    normalisers = cast("Policy", roles["policy"]).normaliser
    found: Tensor = roles["value"](batch, None, prefix=prefix, normalisers=normalisers)
    return found[0]


def make(config: Config, spec: EnvSpec, policy: nn.Module, feed: Feed) -> IQL:
    """The algorithm for one learner."""
    return IQL(config, spec, policy, feed)
