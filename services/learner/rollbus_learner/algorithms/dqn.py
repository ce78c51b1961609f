"""DQN (Mnih et al. 2015) with double Q-learning (1509.06461); dueling (1511.06581) is a head of the policy.

The policy's outputs are Q of every action: it acts greedily, and while collecting at random with probability
epsilon, which falls linearly and reaches actors with the weights. Where it differs from the paper:
- the target follows by ``tau`` at every step, or is copied every ``target_period`` steps;
- Adam in place of RMSProp; Huber's loss in place of clipped errors, which is the same gradient;
- updates come in groups (`sac` says how).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast

from rollbus_core.config.models import option
from rollbus_core.feed import Feed
from rollbus_core.lazy import lazy_import
from rollbus_learner.algorithm import Loss, Progress, Role, Step
from rollbus_learner.algorithms._replay import Replay, ReplayConfig, observed
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

needs = ("torch",)


class Config(ReplayConfig):
    """Settings of DQN."""

    requires: ClassVar[frozenset[str]] = frozenset({"q_values"})

    name: str = "dqn"
    learning_rate: float = option(3e-4, "Step size.", gt=0, le=1)
    max_grad_norm: float = option(10.0, "Gradient norm limit; 0: none.", ge=0)
    double: bool = option(True, "The policy chooses the next action, the target says what it is worth.")
    huber_delta: float = option(1.0, "Errors beyond this count linearly.", gt=0)
    tau: float = option(0.005, "Part of the policy that the target takes over at each step.", gt=0, le=1)
    target_period: int = option(
        0,
        "The target is a copy, made anew after so many gradient steps; 0: it follows by tau.",
        "steps",
        ge=0,
    )
    epsilon: float = option(1.0, "Chance of a random action at the start.", ge=0, le=1)
    final_epsilon: float = option(0.05, "Chance of a random action at the end.", ge=0, le=1)
    epsilon_fraction: float = option(0.2, "Part of the run in which epsilon falls.", gt=0, le=1)


class DQN(Replay):
    """The policy is the action-value function; its slow copy gives targets."""

    def __init__(self, config: Config, spec: EnvSpec, policy: nn.Module, feed: Feed) -> None:
        super().__init__(config, spec, policy, feed)
        if spec.action.kind != "discrete":
            raise ConfigError(
                f"algorithm.name: {config.name} needs one discrete action, those of {spec.name} are "
                f"{spec.action.kind}; use sac or ppo"
            )
        if "q_values" not in getattr(policy, "wants", ()):
            raise ConfigError(f"algorithm.name: {config.name} needs policy.head: q_values")
        self.epsilon = config.epsilon
        cast("Policy", policy).explore(self.epsilon)
        self.num_steps = 0
        self._roles: dict[str, Role] = {}

    def roles(self) -> dict[str, Role]:
        """policy and target; the same ones at each call."""
        if not self._roles:
            self._roles = {"policy": Role(self.policy), "target": average_of(self.policy)}
        return self._roles

    def steps(self) -> list[Step]:
        """One loss."""
        config = self.config
        return [Step("policy", ("policy",), self.loss, config.learning_rate, clip=config.max_grad_norm)]

    def before_update(self, progress: Progress) -> dict[str, float]:
        """Epsilon."""
        config = self.config
        done = min(1.0, progress.fraction / config.epsilon_fraction)
        self.epsilon = config.epsilon + done * (config.final_epsilon - config.epsilon)
        cast("Policy", self.policy).explore(self.epsilon)
        return {}

    def label(self, batch: Batch, roles: Roles, progress: Progress) -> dict[str, float]:
        """Reports epsilon, too."""
        return super().label(batch, roles, progress) | {"epsilon": self.epsilon}

    def loss(self, roles: Roles, batch: Batch) -> Loss:
        """Huber's loss to ``R + g^n (1 - term) Q'(s', a*)``; a* is best by Q (double) or by Q'."""
        from rollbus_learner import masked

        with torch.no_grad():
            following = q_values(roles["target"], batch, "next_")
            judge = q_values(roles["policy"], batch, "next_") if self.config.double else following
            best = following.gather(-1, judge.argmax(-1, keepdim=True)).squeeze(-1)
            target = batch["decision_reward"] + batch["discount"] * best
        taken = batch["action"].unsqueeze(-1)
        q = q_values(roles["policy"], batch, "").gather(-1, taken).squeeze(-1)
        valid = masked.valid_mask(batch)
        loss = torch.nn.functional.huber_loss(q, target, reduction="none", delta=self.config.huber_delta)
        loss = self.weighed(loss, q - target, batch)
        return Loss(
            terms={"critic_loss": masked.total(loss, valid)},
            metrics={
                "q": masked.total(q.detach(), valid),
                "q_target": masked.total(target, valid),
            },
        )

    def after_step(self, roles: Roles, step: str, metrics: Mapping[str, float]) -> bool:
        """The target follows, or is copied when it is due."""
        period = self.config.target_period
        self.num_steps += 1
        if not period:
            follow(roles["target"], roles["policy"], self.config.tau)
        elif self.num_steps % period == 0:
            follow(roles["target"], roles["policy"], 1.0)
        return False

    def state(self) -> dict[str, Any]:
        """Gradient steps so far: when the target is due."""
        return {"num_steps": self.num_steps}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        self.num_steps = int(state["num_steps"])


def q_values(policy: nn.Module, batch: Batch, which: str) -> Tensor:
    """Q [B, n] on ``obs/`` (``which`` "") or ``next_obs/`` ("next_")."""
    found: Tensor = policy(observed(batch, which), ("q_values",))["q_values"]
    return found


def make(config: Config, spec: EnvSpec, policy: nn.Module, feed: Feed) -> DQN:
    """The algorithm for one learner."""
    return DQN(config, spec, policy, feed)
