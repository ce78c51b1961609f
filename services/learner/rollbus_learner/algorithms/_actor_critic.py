"""What off-policy actor-critic algorithms share: an ensemble of critics, its slow target, one loss.

Symbols: B transitions of a minibatch, M critics. Actions are in [-1, 1] units.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from pydantic import BaseModel

from rollbus_core.config.models import Widths, option
from rollbus_core.feed import Feed
from rollbus_core.lazy import lazy_import
from rollbus_learner.algorithm import AlgorithmConfig, Loss, Role, Step
from rollbus_learner.algorithms._replay import Replay, ReplayConfig
from rollbus_learner.averaging import average_of, follow
from rollbus_wire.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from rollbus_learner.algorithm import Batch, Roles
    from rollbus_policies.base import Policy
    from rollbus_wire.spec import EnvSpec
else:
    torch = lazy_import("torch")


class CriticConfig(BaseModel):
    """Settings of policy and critics."""

    learning_rate: float = option(3e-4, "Step size of the policy.", gt=0, le=1)
    critic_learning_rate: float = option(3e-4, "Step size of the critics.", gt=0, le=1)
    tau: float = option(0.005, "Part of the critics that their target takes over at each step.", gt=0, le=1)
    num_critics: int = option(2, "Q functions; the smallest counts.", ge=1)
    critic_hidden: Widths = option([256, 256], "Widths of the hidden layers of each Q function.")
    critic_layer_norm: bool = option(False, "Layer normalisation in the Q functions.")
    critic_group: str = option("policy", "Observation group that Q functions read: policy, privileged, ...")
    max_grad_norm: float = option(0.0, "Gradient norm limit; 0: none.", ge=0)


class ActorCriticConfig(CriticConfig, ReplayConfig):
    """Settings of an algorithm that collects."""


class ActorCritic(Replay):
    """A subclass gives `following`, `policy_loss` and `try_policy`."""

    def __init__(self, config: AlgorithmConfig, spec: EnvSpec, policy: nn.Module, feed: Feed) -> None:
        super().__init__(config, spec, policy, feed)
        if spec.action.kind != "continuous":
            raise ConfigError(
                f"algorithm.name: {config.name} needs continuous actions, those of {spec.name} are "
                f"{spec.action.kind}; use dqn or ppo"
            )
        with torch.no_grad():
            self.try_policy(blank_observations(spec, cast("Policy", policy).spec.frame_stack))
        self._roles: dict[str, Role] = {}

    # --- what a subclass gives ---------------------------------------------------------------------

    def try_policy(self, batch: Batch) -> None:
        """Ask the policy for what will be needed of it, so that it fails here and not after warm-up."""

    def following(self, roles: Roles, batch: Batch) -> Tensor:
        """V [B] of the next state, without gradient."""
        raise NotImplementedError

    def policy_loss(self, roles: Roles, batch: Batch) -> Loss:
        """What the policy descends."""
        raise NotImplementedError

    def further_roles(self) -> dict[str, Role]:
        """Beside policy, critic and target."""
        return {}

    # --- the contract ------------------------------------------------------------------------------

    def roles(self) -> dict[str, Role]:
        """policy, critic, target (the critic's moving average) and what the algorithm adds; made once."""
        if not self._roles:
            critic = self.make_critic()
            self._roles = {
                "policy": Role(self.policy),
                "critic": Role(critic),
                "target": average_of(critic),
            } | self.further_roles()
        return self._roles

    def make_critic(self) -> nn.Module:
        """``critic(batch, action, prefix, normalisers) -> [M, B]`` over ``prefix<key>``."""
        from rollbus_policies._critics import make_q

        config, policy = self.config, cast("Policy", self.policy).spec
        return make_q(
            config, self.spec, config.num_critics, policy.frame_stack, layer_norm=config.critic_layer_norm,
            num_actions=policy.execute,
        )  # fmt: skip

    def critic_step(self) -> Step:
        """All critics at once."""
        config = self.config
        rate = config.critic_learning_rate
        return Step("critic", ("critic",), self.critic_loss, rate, clip=config.max_grad_norm)

    def policy_step(self, *trains: str, every: int = 1) -> Step:
        """The policy, with what else it ``trains``."""
        config, roles = self.config, ("policy", *trains)
        clip = config.max_grad_norm
        return Step("policy", roles, self.policy_loss, config.learning_rate, clip=clip, every=every)

    def critic_loss(self, roles: Roles, batch: Batch) -> Loss:
        """Half the squared error to ``R + g^n (1 - term) V(s')``, summed over critics."""
        from rollbus_learner import masked

        with torch.no_grad():
            target = batch["decision_reward"] + batch["discount"] * self.following(roles, batch)
            taken = self.taken(roles, batch)
        q = values(roles, "critic", batch, taken, "obs/")
        valid, error = masked.valid_mask(batch), q - target
        loss = self.weighed(0.5 * (error**2).sum(0), error.abs().mean(0), batch)
        return Loss(
            terms={"critic_loss": masked.total(loss, valid)},
            metrics={
                "q": masked.total(q.detach().mean(0), valid),
                "q_target": masked.total(target, valid),
            },
        )

    def taken(self, roles: Roles, batch: Batch) -> Tensor:
        """What the critics get of the action that was taken."""
        return cast("Policy", roles["policy"]).squash(batch["action"])

    def after_step(self, roles: Roles, step: str, metrics: Mapping[str, float]) -> bool:
        """The target follows the critic."""
        if step == "critic":
            follow(roles["target"], roles["critic"], self.config.tau)
        return False


def values(roles: Roles, role: str, batch: Batch, action: Tensor, prefix: str) -> Tensor:
    """Q [M, B] of ``action``, on observations normalised as the policy sees them."""
    normalisers = cast("Policy", roles["policy"]).normaliser
    found: Tensor = roles[role](batch, action, prefix=prefix, normalisers=normalisers)
    return found


def blank_observations(spec: EnvSpec, frame_stack: int) -> Batch:
    """One row of zeros."""
    frames = () if frame_stack == 1 else (frame_stack,)
    return {
        f"obs/{key}": torch.zeros((1, *frames, *array.shape), dtype=getattr(torch, array.dtype))
        for key, array in spec.observation.items()
    }
