"""Soft actor-critic (Haarnoja et al., 1812.05905) on replayed transitions.

Where it differs from the paper and from cleanrl:
- the temperature is trained in the same step as the policy, on the same samples;
- rewards of a decision are discounted sums over its executed environment steps, bootstrapped by gamma^n;
- a truncated episode is bootstrapped from its final observation;
- updates come in groups: after every ``steps_per_update`` environment steps as many gradient steps as
  ``updates_per_step`` says.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from pydantic import BaseModel

from rollbus_core.config.models import option
from rollbus_core.feed import Feed
from rollbus_core.lazy import lazy_import
from rollbus_learner.algorithm import Loss, Progress, Role, Step
from rollbus_learner.algorithms._actor_critic import ActorCritic, ActorCriticConfig, values
from rollbus_learner.algorithms._replay import observed

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from rollbus_learner.algorithm import Batch, Roles
    from rollbus_policies.base import Policy
    from rollbus_wire.spec import EnvSpec
else:
    torch = lazy_import("torch")

needs = ("torch",)


class Entropy(BaseModel):
    """Settings of the temperature."""

    learning_rate: float = option(3e-4, "Step size of policy and temperature.", gt=0, le=1)
    alpha: Literal["auto"] | float = option("auto", "Temperature of the entropy; auto: trained.")
    initial_alpha: float = option(1.0, "Temperature at the start, with alpha: auto.", gt=0)
    target_entropy: Literal["auto"] | float = option(
        "auto", "Entropy that alpha: auto aims at; auto: minus the number of action elements.", "nats"
    )


class Config(Entropy, ActorCriticConfig):
    """Settings of SAC."""

    requires: ClassVar[frozenset[str]] = frozenset({"sample", "log_prob"})
    masks_padding: ClassVar[bool] = True

    name: str = "sac"


class SAC(ActorCritic):
    """SAC with an ensemble of critics, their slow target and a temperature."""

    def __init__(self, config: Any, spec: EnvSpec, policy: nn.Module, feed: Feed) -> None:
        super().__init__(config, spec, policy, feed)
        wanted = config.target_entropy
        self.target_entropy = -float(self.num_elements) if wanted == "auto" else float(wanted)
        self.auto_alpha = config.alpha == "auto"

    @property
    def num_elements(self) -> int:
        """Elements of what the policy chooses in one decision."""
        return self.spec.action.size * cast("Policy", self.policy).spec.execute

    def further_roles(self) -> dict[str, Role]:
        """The temperature, as its logarithm."""
        start = self.config.initial_alpha if self.auto_alpha else max(float(self.config.alpha), 1e-8)
        alpha = torch.nn.Module()
        alpha.register_parameter("log_alpha", torch.nn.Parameter(torch.tensor(math.log(start))))
        return {"alpha": Role(alpha, trainable=self.auto_alpha)}

    def steps(self) -> list[Step]:
        """Critic, then policy and temperature."""
        return [self.critic_step(), self.policy_step(*(["alpha"] if self.auto_alpha else []))]

    # --- what the policy does ----------------------------------------------------------------------

    @property
    def num_noise(self) -> int:
        """Width of the noise that `sample` takes."""
        return cast("Policy", self.policy).spec.noise

    def sample(self, policy: nn.Module, batch: Batch, which: str) -> tuple[Tensor, Tensor]:
        """An action and its log-prob for ``obs/`` (``which`` "") or ``next_obs/`` ("next_")."""
        drawn = policy({**observed(batch, which), "noise": batch[f"{which}noise"]}, ("sample",))
        return cast("Policy", policy).squash(drawn["sample"]), drawn["sample_log_prob"]

    def try_policy(self, batch: Batch) -> None:
        """One sample."""
        self.sample(self.policy, batch | {"noise": torch.zeros(1, self.num_noise)}, "")

    def label(self, batch: Batch, roles: Roles, progress: Progress) -> dict[str, float]:
        """Adds noise and next_noise, too."""
        metrics = super().label(batch, roles, progress)
        shape, device = (len(batch["valid"]), self.num_noise), batch["reward"].device
        batch["noise"] = torch.randn(shape, device=device)
        batch["next_noise"] = torch.randn(shape, device=device)
        return metrics

    # --- losses ------------------------------------------------------------------------------------

    def following(self, roles: Roles, batch: Batch) -> Tensor:
        """``min Q'(s', a') - alpha log pi(a'|s')``."""
        action, log_prob = self.sample(roles["policy"], batch, "next_")
        heads = values(roles, "target", batch, action, "next_obs/")
        return self.next_value(heads, log_alpha(roles).exp() * log_prob)

    def next_value(self, heads: Tensor, entropy_cost: Tensor) -> Tensor:
        """V [B] of the next state from the target's Q [M, B] and ``alpha log pi`` [B]."""
        return heads.amin(0) - entropy_cost

    def policy_value(self, heads: Tensor) -> Tensor:
        """What the policy maximises [B], from the critic's Q [M, B]."""
        return heads.amin(0)

    def policy_heads(self, roles: Roles, batch: Batch, action: Tensor) -> Tensor:
        """The critic's Q [M, B] that the policy's gradient goes through."""
        return values(roles, "critic", batch, action, "obs/")

    def wanted_entropy(self, batch: Batch) -> Tensor | float:
        """What alpha aims at; with auto, a row counts the elements that are its own."""
        from rollbus_policies._observing import of_batch

        padding, spec = getattr(self.policy, "padding", None), cast("Policy", self.policy).spec
        if padding is None or self.config.target_entropy != "auto":
            return self.target_entropy
        own: Tensor = padding.own_elements(of_batch(batch))
        return -float(spec.execute) * own.sum(-1)

    def policy_loss(self, roles: Roles, batch: Batch) -> Loss:
        """``alpha log pi - min Q``, and ``-log_alpha sg(log pi + H)`` for the temperature."""
        from rollbus_learner import masked

        action, log_prob = self.sample(roles["policy"], batch, "")
        alpha = log_alpha(roles).exp().detach()
        best = self.policy_value(self.policy_heads(roles, batch, action))
        valid = masked.valid_mask(batch)
        terms = {"policy_loss": masked.total(alpha * log_prob - best, valid)}
        if self.auto_alpha:
            above = (log_prob + self.wanted_entropy(batch)).detach()
            terms["alpha_loss"] = masked.total(-log_alpha(roles) * above, valid)
        return Loss(
            terms=terms,
            metrics={
                "entropy": masked.total(-log_prob.detach(), valid),
                "alpha": masked.total(alpha.expand_as(best), valid),
            },
        )


def log_alpha(roles: Roles) -> Tensor:
    """Logarithm of the temperature, a scalar."""
    return cast("Tensor", roles["alpha"].log_alpha)


def make(config: Config, spec: EnvSpec, policy: nn.Module, feed: Feed) -> SAC:
    """The algorithm for one learner."""
    return SAC(config, spec, policy, feed)
