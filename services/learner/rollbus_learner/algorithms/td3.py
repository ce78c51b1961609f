"""TD3: twin critics, target policy smoothing, delayed policy (Fujimoto et al., 1802.09477).

Where it differs from the paper and from stable-baselines3:
- exploration noise lies in the policy's head (``head: deterministic``) and reaches actors with the weights;
- updates come in groups (`sac` says how); the policy's delay is counted within each;
- rewards of a decision are discounted sums over its executed environment steps, bootstrapped by gamma^n.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, cast

from pydantic import BaseModel

from rollbus_core.config.models import option
from rollbus_core.feed import Feed
from rollbus_core.lazy import lazy_import
from rollbus_learner.algorithm import AlgorithmConfig, Loss, Progress, Role, Step
from rollbus_learner.algorithms._actor_critic import ActorCritic, ActorCriticConfig, values
from rollbus_learner.algorithms._replay import check_delay, observed
from rollbus_learner.averaging import average_of, follow

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from rollbus_learner.algorithm import Batch, Roles
    from rollbus_policies.base import Policy
    from rollbus_wire.spec import EnvSpec
else:
    torch = lazy_import("torch")

needs = ("torch",)


class Smoothing(BaseModel):
    """Settings of the target policy and of the delay."""

    policy_delay: int = option(2, "Gradient steps of the critics per one of the policy.", ge=1)
    target_noise: float = option(0.2, "Deviation of the noise on the target's action.", ge=0)
    target_noise_clip: float = option(0.5, "The largest such noise.", ge=0)


class Config(Smoothing, ActorCriticConfig):
    """Settings of TD3."""

    requires: ClassVar[frozenset[str]] = frozenset({"deterministic"})
    masks_padding: ClassVar[bool] = True

    name: str = "td3"
    exploration_noise: float = option(
        0.1, "Deviation of the noise on actions while collecting, in [-1, 1] units.", ge=0
    )

    def feed(self, *, num_envs: int, num_slices: int, deterministic: bool) -> Feed:
        """As all replay; the policy must come to its turn in every update."""
        feed = super().feed(num_envs=num_envs, num_slices=num_slices, deterministic=deterministic)
        check_delay(self.policy_delay, feed.num_batches)
        return feed


class TD3(ActorCritic):
    """A deterministic policy, its slow copy, and critics."""

    def __init__(self, config: AlgorithmConfig, spec: EnvSpec, policy: nn.Module, feed: Feed) -> None:
        super().__init__(config, spec, policy, feed)
        cast("Policy", policy).explore(getattr(config, "exploration_noise", 0.0))

    def try_policy(self, batch: Batch) -> None:
        """One action."""
        action(self.policy, batch, "")

    def further_roles(self) -> dict[str, Role]:
        """The policy's moving average."""
        return {"target_policy": average_of(self.policy)}

    def steps(self) -> list[Step]:
        """Critics, and the policy at every so many of them."""
        return [self.critic_step(), self.policy_step(every=self.config.policy_delay)]

    def label(self, batch: Batch, roles: Roles, progress: Progress) -> dict[str, float]:
        """Adds the noise on the target's action, too."""
        metrics = super().label(batch, roles, progress)
        width = self.spec.action.size * cast("Policy", self.policy).spec.execute
        noise = self.config.target_noise * torch.randn(
            (len(batch["valid"]), width), device=batch["reward"].device
        )
        batch["next_noise"] = noise.clamp(-self.config.target_noise_clip, self.config.target_noise_clip)
        return metrics

    def following(self, roles: Roles, batch: Batch) -> Tensor:
        """``min Q'(s', pi'(s') + noise)``."""
        smooth = action(roles["target_policy"], batch, "next_")
        smooth = (smooth + batch["next_noise"].view_as(smooth)).clamp(-1.0, 1.0)
        return values(roles, "target", batch, smooth, "next_obs/").amin(0)

    def policy_loss(self, roles: Roles, batch: Batch) -> Loss:
        """Minus the first critic's Q of what the policy would do."""
        from rollbus_learner import masked

        q = values(roles, "critic", batch, action(roles["policy"], batch, ""), "obs/")[0]
        return Loss({"policy_loss": masked.total(-q, masked.valid_mask(batch))})

    def after_step(self, roles: Roles, step: str, metrics: Mapping[str, float]) -> bool:
        """Both targets follow when the policy was trained."""
        if step == "policy":
            follow(roles["target"], roles["critic"], self.config.tau)
            follow(roles["target_policy"], roles["policy"], self.config.tau)
        return False


def action(policy: nn.Module, batch: Batch, which: str) -> Tensor:
    """What ``policy`` does, in [-1, 1] units, on ``obs/`` (``which`` "") or ``next_obs/`` ("next_")."""
    stored = policy(observed(batch, which), ("deterministic",))["deterministic"]
    return cast("Policy", policy).squash(stored)


def make(config: Config, spec: EnvSpec, policy: nn.Module, feed: Feed) -> TD3:
    """The algorithm for one learner."""
    return TD3(config, spec, policy, feed)
