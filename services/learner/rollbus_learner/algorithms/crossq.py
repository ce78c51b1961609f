"""CrossQ: SAC without target network, by batch renormalisation (Bhatt et al., 1902.05605).

Q(s, a) and Q(s', a') go through the critics in one batch, so that both are normalised by the same statistics;
the policy's gradient goes through the critics with their moving averages. Where it differs from the authors'
code: the policy has no batch normalisation (rows that act must not depend on each other); interrupted
transitions are taken out of the batch before its statistics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from rollbus_core.config.models import option
from rollbus_core.feed import Feed
from rollbus_core.lazy import lazy_import
from rollbus_learner.algorithm import Loss, Role, Step
from rollbus_learner.algorithms import sac
from rollbus_learner.algorithms._replay import check_delay

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from rollbus_learner.algorithm import Batch, Roles
    from rollbus_policies.base import Policy
    from rollbus_wire.spec import EnvSpec
else:
    torch = lazy_import("torch")

needs = ("torch",)


class Config(sac.Config):
    """Settings of CrossQ; those of SAC with other defaults."""

    name: str = "crossq"
    learning_rate: float = option(1e-3, "Step size of policy and temperature.", gt=0, le=1)
    critic_learning_rate: float = option(1e-3, "Step size of the critics.", gt=0, le=1)
    beta1: float = option(0.5, "Adam's decay of the mean gradient.", ge=0, lt=1)
    policy_delay: int = option(3, "Gradient steps of the critics per one of the policy.", ge=1)
    renorm_warm_up: int = option(
        100_000, "Gradient steps of plain batch normalisation, before its correction begins.", ge=0
    )

    def feed(self, *, num_envs: int, num_slices: int, deterministic: bool) -> Feed:
        """As all replay; the policy must come to its turn in every update."""
        feed = super().feed(num_envs=num_envs, num_slices=num_slices, deterministic=deterministic)
        check_delay(self.policy_delay, feed.num_batches)
        return feed


class CrossQ(sac.SAC):
    """SAC whose critics normalise their batches."""

    def roles(self) -> dict[str, Role]:
        """Without a target."""
        return {name: role for name, role in super().roles().items() if name != "target"}

    def make_critic(self) -> nn.Module:
        """Critics with batch renormalisation."""
        from rollbus_policies._critics import make_q

        config, policy = self.config, cast("Policy", self.policy).spec
        return make_q(
            config, self.spec, config.num_critics, policy.frame_stack, num_actions=policy.execute,
            layer_norm=config.critic_layer_norm, batch_renorm=config.renorm_warm_up,
        )  # fmt: skip

    def steps(self) -> list[Step]:
        """SAC's, with less momentum and a delayed policy."""
        betas, delay = (self.config.beta1, 0.999), self.config.policy_delay
        critic, policy = super().steps()
        return [replace(critic, betas=betas), replace(policy, betas=betas, every=delay)]

    def critic_loss(self, roles: Roles, batch: Batch) -> Loss:
        """Half the squared error to the target, which comes out of the same forward pass."""
        if "valid" in batch:
            batch = {name: column[batch["valid"]] for name, column in batch.items()}
        with torch.no_grad():
            action, log_prob = self.sample(roles["policy"], batch, "next_")
            taken = self.taken(roles, batch)
        heads, following = self.joint(roles, batch, taken, action).chunk(2, 1)
        entropy_cost = sac.log_alpha(roles).exp() * log_prob
        value = self.next_value(following, entropy_cost).detach()
        target = batch["decision_reward"] + batch["discount"] * value
        num, error = len(target), heads - target
        loss = self.weighed(0.5 * (error**2).sum(0), error.abs().mean(0), batch)
        return Loss(
            terms={"critic_loss": (loss.sum(), num)},
            metrics={"q": (heads.detach().mean(0).sum(), num), "q_target": (target.sum(), num)},
        )

    def joint(self, roles: Roles, batch: Batch, taken: Tensor, following: Tensor) -> Tensor:
        """Q [M, 2B]: of (s, a), then of (s', a')."""
        both = {
            name: torch.cat([column, batch[f"next_{name}"]])
            for name, column in batch.items() if name.startswith("obs/")
        }  # fmt: skip
        normalisers = cast("Policy", roles["policy"]).normaliser
        actions = torch.cat([taken, following])
        found: Tensor = roles["critic"](both, actions, prefix="obs/", normalisers=normalisers)
        return found

    def policy_heads(self, roles: Roles, batch: Batch, action: Tensor) -> Tensor:
        """By the critics' moving averages."""
        normalisers = cast("Policy", roles["policy"]).normaliser
        found: Tensor = roles["critic"](batch, action, prefix="obs/", normalisers=normalisers, running=True)
        return found

    def after_step(self, roles: Roles, step: str, metrics: Mapping[str, float]) -> bool:
        """There is no target to move."""
        return False


def make(config: Config, spec: EnvSpec, policy: nn.Module, feed: Feed) -> CrossQ:
    """The algorithm for one learner."""
    return CrossQ(config, spec, policy, feed)
