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
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal, cast

from rollbus_core.config.models import option
from rollbus_core.feed import Feed, TableConfig
from rollbus_core.lazy import lazy_import
from rollbus_learner.algorithm import Algorithm, AlgorithmConfig, Loss, Plan, Progress, Role, Step
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


class Config(AlgorithmConfig):
    """Settings of SAC."""

    requires: ClassVar[frozenset[str]] = frozenset({"sample"})

    name: str = "sac"
    num_steps: int = option(
        16, "Decisions per row of one chunk on its way to the replay table.", "decisions", ge=1
    )
    steps_per_update: int = option(64, "Steps collected between two updates.", "steps", ge=1)
    updates_per_step: float = option(1.0, "Gradient steps per collected step.", gt=0)
    batch_size: int = option(256, "Transitions of one gradient step.", ge=1)
    start_steps: int = option(1000, "Steps that act at random before learning begins.", "steps", ge=1)
    max_steps: int = option(1_000_000, "Transitions the replay table keeps.", "steps", ge=1)
    max_bytes: int = option(4 << 30, "Bytes the replay table may take.", "bytes", ge=1 << 20)
    learning_rate: float = option(3e-4, "Step size of policy and temperature.", gt=0)
    critic_learning_rate: float = option(3e-4, "Step size of the critics.", gt=0)
    gamma: float = option(0.99, "Discount per environment step.", ge=0, le=1)
    tau: float = option(0.005, "Part of the critics that their target takes over at each step.", gt=0, le=1)
    num_critics: int = option(2, "Q functions; the smallest counts.", ge=1)
    critic_hidden: list[int] = option([256, 256], "Widths of the hidden layers of each Q function.")
    critic_layer_norm: bool = option(False, "Layer normalisation in the Q functions.")
    critic_group: str = option("policy", "Observation group that Q functions read: policy, privileged, ...")
    alpha: Literal["auto"] | float = option("auto", "Temperature of the entropy; auto: trained.")
    initial_alpha: float = option(1.0, "Temperature at the start, with alpha: auto.", gt=0)
    target_entropy: Literal["auto"] | float = option(
        "auto", "Entropy that alpha: auto aims at; auto: minus the number of action elements.", "nats"
    )
    max_grad_norm: float = option(0.0, "Gradient norm limit; 0: none.", ge=0)

    def feed(self, *, num_envs: int, num_slices: int, deterministic: bool) -> Feed:
        """Uniform draws of transitions; one update is several gradient steps."""
        num_batches = round(self.steps_per_update * self.updates_per_step)
        if num_batches < 1:
            raise ValueError(
                f"algorithm.steps_per_update {self.steps_per_update} x algorithm.updates_per_step "
                f"{self.updates_per_step} is less than one gradient step; raise one of them"
            )
        if self.start_steps > self.max_steps:
            raise ValueError(
                f"algorithm.start_steps {self.start_steps} exceeds algorithm.max_steps {self.max_steps}: "
                "the table would never hold enough to begin"
            )
        return Feed(
            table=TableConfig(
                sampler="replay",
                min_steps=self.start_steps,
                random_steps=self.start_steps,
                steps_per_update=self.steps_per_update,
                max_steps=self.max_steps,
                max_bytes=self.max_bytes,
            ),
            num_decisions=self.num_steps,
            unit="step",
            num_batches=num_batches,
            batch_size=self.batch_size,
            summary=f"one update = {self.steps_per_update} steps collected over {num_envs} rows, "
            f"{num_batches} gradient steps on {self.batch_size} transitions each, after "
            f"{self.start_steps} random steps",
        )


class SAC(Algorithm):
    """SAC with an ensemble of critics, their slow target and a temperature."""

    def __init__(self, config: Config, spec: EnvSpec, policy: nn.Module, feed: Feed) -> None:
        super().__init__(config, spec, policy, feed)
        if spec.action.kind != "continuous":
            raise ConfigError(
                f"algorithm.name: {config.name} needs continuous actions, those of {spec.name} are "
                f"{spec.action.kind}; use ppo"
            )
        self._try_a_sample()
        wanted = config.target_entropy
        self.target_entropy = (
            -float(spec.action.size * cast("Policy", policy).spec.execute)
            if wanted == "auto"
            else float(wanted)
        )
        self.auto_alpha = config.alpha == "auto"
        self._roles: dict[str, Role] = {}

    def _try_a_sample(self) -> None:
        """A policy that cannot be sampled with gradient, or has a state, fails here and not after warm-up."""
        policy = cast("Policy", self.policy)
        if policy.spec.state != "none":
            raise ConfigError(
                f"algorithm.name: {self.config.name} replays single steps; use a policy without "
                "recurrent state"
            )
        frames = () if policy.spec.frame_stack == 1 else (policy.spec.frame_stack,)
        batch = {
            f"obs/{key}": torch.zeros((1, *frames, *array.shape), dtype=getattr(torch, array.dtype))
            for key, array in self.spec.observation.items()
        }
        with torch.no_grad():
            sample(self.policy, batch | {"noise": torch.zeros(1, policy.spec.noise)}, "")

    def roles(self) -> dict[str, Role]:
        """policy, critic, target (the critic's moving average), alpha; the same ones at each call."""
        if not self._roles:
            critic = self.make_critic()
            start = self.config.initial_alpha if self.auto_alpha else max(float(self.config.alpha), 1e-8)
            alpha = torch.nn.Module()
            alpha.register_parameter("log_alpha", torch.nn.Parameter(torch.tensor(math.log(start))))
            self._roles = {
                "policy": Role(self.policy),
                "critic": Role(critic),
                "target": average_of(critic),
                "alpha": Role(alpha, trainable=self.auto_alpha),
            }
        return self._roles

    def make_critic(self) -> nn.Module:
        """``critic(batch, action in [-1, 1], prefix, normalisers) -> [M, B]`` over ``prefix<key>``."""
        from rollbus_policies._critics import make_q

        config, policy = self.config, cast("Policy", self.policy).spec
        return make_q(
            config, self.spec, config.num_critics, policy.frame_stack, layer_norm=config.critic_layer_norm,
            num_actions=policy.execute,
        )  # fmt: skip

    def plan(self) -> Plan:
        """The drawn minibatches, one after the other."""
        return Plan(batch_size=self.config.batch_size, ordered=True)

    def steps(self) -> list[Step]:
        """Critic, then policy and temperature."""
        config = self.config
        trains = ("policy", "alpha") if self.auto_alpha else ("policy",)
        return [
            Step(
                "critic",
                ("critic",),
                self.critic_loss,
                config.critic_learning_rate,
                clip=config.max_grad_norm,
            ),
            Step("policy", trains, self.policy_loss, config.learning_rate, clip=config.max_grad_norm),
        ]

    def label(self, batch: Batch, roles: Roles, progress: Progress) -> dict[str, float]:
        """Adds decision_reward, discount (0 where terminated), noise, next_noise; masks interrupted steps."""
        n, gamma = batch["num_steps"], self.config.gamma
        reward = batch["reward"]
        place = torch.arange(reward.shape[-1], device=reward.device)
        executed = torch.where(place < n[:, None], reward, torch.zeros_like(reward))
        batch["decision_reward"] = (executed * gamma**place).sum(-1)
        batch["discount"] = gamma ** n.to(reward.dtype) * (~batch["terminated"]).to(reward.dtype)
        batch["valid"] = batch["valid"] & ~batch["interrupted"]
        shape = (len(n), cast("Policy", self.policy).spec.noise)
        batch["noise"] = torch.randn(shape, device=reward.device)
        batch["next_noise"] = torch.randn(shape, device=reward.device)
        return {}

    def critic_loss(self, roles: Roles, batch: Batch) -> Loss:
        """Half the squared error to ``R + g^n (1 - term) (min Q'(s', a') - alpha log pi(a'|s'))``."""
        from rollbus_learner import masked

        with torch.no_grad():
            action, log_prob = sample(roles["policy"], batch, "next_")
            alpha = log_alpha(roles).exp()
            heads = values(roles, "target", batch, action, "next_obs/")
            following = self.next_value(heads, alpha * log_prob)
            target = batch["decision_reward"] + batch["discount"] * following
            taken = cast("Policy", roles["policy"]).squash(batch["action"])
        q = values(roles, "critic", batch, taken, "obs/")
        valid = masked.valid_mask(batch)
        error = 0.5 * ((q - target) ** 2).sum(0)
        return Loss(
            terms={"critic_loss": masked.total(error, valid)},
            metrics={
                "q": masked.total(q.detach().mean(0), valid),
                "q_target": masked.total(target, valid),
            },
        )

    def next_value(self, heads: Tensor, entropy_cost: Tensor) -> Tensor:
        """V [B] of the next state from the target's Q [M, B] and ``alpha log pi`` [B]."""
        return heads.amin(0) - entropy_cost

    def policy_value(self, heads: Tensor) -> Tensor:
        """What the policy maximises [B], from the critic's Q [M, B]."""
        return heads.amin(0)

    def policy_loss(self, roles: Roles, batch: Batch) -> Loss:
        """``alpha log pi - min Q``, and ``-log_alpha sg(log pi + H)`` for the temperature."""
        from rollbus_learner import masked

        action, log_prob = sample(roles["policy"], batch, "")
        alpha = log_alpha(roles).exp().detach()
        best = self.policy_value(values(roles, "critic", batch, action, "obs/"))
        valid = masked.valid_mask(batch)
        terms = {"policy_loss": masked.total(alpha * log_prob - best, valid)}
        if self.auto_alpha:
            above = (log_prob + self.target_entropy).detach()
            terms["alpha_loss"] = masked.total(-log_alpha(roles) * above, valid)
        return Loss(
            terms=terms,
            metrics={
                "entropy": masked.total(-log_prob.detach(), valid),
                "alpha": masked.total(alpha.expand_as(best), valid),
            },
        )

    def after_step(self, roles: Roles, step: str, metrics: Mapping[str, float]) -> bool:
        """The target follows the critic."""
        if step == "critic":
            follow(roles["target"], roles["critic"], self.config.tau)
        return False

    def after_update(self, batch: Batch, roles: Roles, metrics: Mapping[str, float]) -> None:
        """Observation statistics, once per update."""
        seen = {name: column for name, column in batch.items() if name.startswith("obs/")}
        cast("Policy", roles["policy"]).update_normaliser(seen, batch["valid"])

    def publish(self, roles: Roles) -> dict[str, Tensor]:
        """The policy; actors need no critic."""
        tensors = roles["policy"].state_dict()
        return {name: tensor for name, tensor in tensors.items() if not name.startswith("critic.")}


def sample(policy: nn.Module, batch: Batch, which: str) -> tuple[Tensor, Tensor]:
    """An action in [-1, 1] units and its log-prob for ``obs/`` (``which`` "") or ``next_obs/`` ("next_")."""
    observed = {
        name.removeprefix(which): column for name, column in batch.items() if name.startswith(f"{which}obs/")
    }
    drawn = policy({**observed, "noise": batch[f"{which}noise"]}, ("sample",))
    return cast("Policy", policy).squash(drawn["sample"]), drawn["sample_log_prob"]


def values(roles: Roles, role: str, batch: Batch, action: Tensor, prefix: str) -> Tensor:
    """Q [M, B] of ``action`` in [-1, 1] units, on observations normalised as the policy sees them."""
    normalisers = cast("Policy", roles["policy"]).normaliser
    return roles[role](batch, action, prefix=prefix, normalisers=normalisers)


def log_alpha(roles: Roles) -> Tensor:
    """Logarithm of the temperature, a scalar."""
    return cast("Tensor", roles["alpha"].log_alpha)


def make(config: Config, spec: EnvSpec, policy: nn.Module, feed: Feed) -> SAC:
    """The algorithm for one learner."""
    return SAC(config, spec, policy, feed)
