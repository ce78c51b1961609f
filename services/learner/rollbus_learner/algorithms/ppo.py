"""Proximal policy optimisation (Schulman et al., 1707.06347) with GAE (1506.02438).

Where it differs from the paper and from stable-baselines3:
- collection goes on while the learner learns (``max_lag`` 1): the ratio is against the log-probs of the
  version that acted; ``max_lag: 0`` is the classical algorithm;
- values are recomputed by the learner before the first epoch (``value_source: learner``);
- advantages are normalised once over the whole update, not per minibatch;
- the KL stop comes after the step that exceeded it, and ends the update;
- where an episode was truncated, the value of its final observation is the bootstrap.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import numpy as np
from pydantic import model_validator

from rollbus_core.config.models import option
from rollbus_core.feed import Feed, TableConfig
from rollbus_core.lazy import lazy_import
from rollbus_learner.algorithm import Algorithm, AlgorithmConfig, Loss, Plan, Progress, Role, Step

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from rollbus_learner.algorithm import Batch, Roles
    from rollbus_policies.base import Policy, PolicySpec
    from rollbus_wire.spec import EnvSpec
else:
    torch = lazy_import("torch")

needs = ("torch",)

Schedule = Literal["constant", "linear"]
#: Bounds of the KL-adaptive learning rate, and the step by which it moves (rsl_rl).
ADAPTIVE_RATE = (1e-5, 1e-2)
ADAPTIVE_STEP = 1.5
#: What the loss tells besides its terms.
_STATISTICS = ("entropy", "approx_kl", "clip_fraction", "value")
#: Samples on which the log-probs of actor and learner are compared at most.
GAP_SAMPLES = 512


class Config(AlgorithmConfig):
    """Settings of PPO."""

    requires: ClassVar[frozenset[str]] = frozenset({"log_prob", "entropy", "value"})

    name: str = "ppo"
    num_steps: int = option(128, "Decisions per row of one update.", "decisions", ge=1)
    epochs: int = option(4, "Passes over the samples of one update.", ge=1)
    minibatches: int = option(8, "Minibatches of one epoch.", ge=1)
    max_lag: int = option(
        1,
        "Updates between the version that acted and the one that learns; 0: classical PPO.",
        "updates",
        ge=0,
    )
    learning_rate: float = option(3e-4, "Step size of Adam.", gt=0)
    learning_rate_schedule: Schedule = option("constant", "linear: falls to 0 at run.total_steps.")
    adaptive_kl: float = option(
        0.0,
        "Wanted KL per update: the learning rate is divided by 1.5 above twice of it and multiplied by "
        "1.5 below half of it; 0: off.",
        "nats",
        ge=0,
    )
    gamma: float = option(0.99, "Discount per environment step.", ge=0, le=1)
    gae_lambda: float = option(0.95, "Trace decay of GAE, once per decision.", ge=0, le=1)
    clip: float = option(
        0.2, "The ratio is clipped at 1 - clip, and at 1 + clip if clip_high is not set.", gt=0, lt=1
    )
    clip_high: float | None = option(None, "Upper clip of the ratio, where it differs from clip.", gt=0)
    clip_schedule: Schedule = option("constant", "linear: both clips fall to 0 at run.total_steps.")
    dual_clip: float = option(0.0, "Bound c > 1 of the loss of negative advantages; 0: off.", ge=0)
    value_coef: float = option(0.5, "Weight of the value loss.", ge=0)
    value_clip: float = option(0.0, "How far the value may move from its old one in an update; 0: any.", ge=0)
    huber_delta: float = option(0.0, "Value errors beyond this count linearly; 0: squared error.", ge=0)
    entropy_coef: float = option(0.0, "Weight of the entropy bonus.", ge=0)
    entropy_schedule: Schedule = option("constant", "linear: entropy_coef falls to 0 at run.total_steps.")
    max_grad_norm: float = option(0.5, "Gradient norm limit; 0: none.", ge=0)
    normalise_advantage: bool = option(True, "Advantages of an update get mean 0 and deviation 1.")
    target_kl: float = option(
        0.0, "The update ends once a minibatch's KL exceeds 1.5 x this; 0: never.", "nats", ge=0
    )
    value_source: Literal["learner", "actor"] = option(
        "learner", "Who computes the values that advantages are made of; actor: recorded while acting."
    )
    reward_scaling: Literal["none", "constant", "running_std"] = option(
        "none", "running_std: rewards over the running deviation of the discounted return. Logs stay raw."
    )
    reward_scale: float = option(1.0, "Factor of the reward, with any scaling but none.", gt=0)

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        if self.dual_clip and self.dual_clip <= 1:
            raise ValueError(
                f"dual_clip {self.dual_clip} does not bound anything; give more than 1, or 0 for off"
            )
        if self.reward_scaling == "none" and self.reward_scale != 1.0:
            raise ValueError(
                f"reward_scale {self.reward_scale} has no effect with reward_scaling: none; use constant"
            )
        if self.adaptive_kl and self.learning_rate_schedule != "constant":
            raise ValueError(
                "adaptive_kl and learning_rate_schedule: linear both set the learning rate; choose one"
            )
        return self

    def feed(self, *, num_envs: int, num_slices: int, deterministic: bool) -> Feed:
        """Whole chunks from a queue; one update is num_envs x num_steps samples."""
        samples = num_envs * self.num_steps
        if samples % self.minibatches:
            raise ValueError(
                f"algorithm.minibatches {self.minibatches} does not divide env.num_envs {num_envs} x "
                f"algorithm.num_steps {self.num_steps} = {samples} samples; change one of the three"
            )
        lag = 0 if deterministic else self.max_lag
        return Feed(
            table=TableConfig(batch_steps=samples, max_lag=lag, one_chunk_per_slice=deterministic),
            num_decisions=self.num_steps,
            extras=("log_prob", "value") if self.value_source == "actor" else ("log_prob",),
            summary=f"one update = {num_envs} rows x {self.num_steps} steps = {samples} samples, "
            f"{self.epochs} epochs x {self.minibatches} minibatches of {samples // self.minibatches}, "
            f"lag <= {lag}",
        )


class PPO(Algorithm):
    """PPO on the one role "policy", which holds its own value function."""

    def __init__(self, config: Config, spec: EnvSpec, policy: nn.Module, feed: Feed) -> None:
        super().__init__(config, spec, policy, feed)
        from rollbus_learner.reward_scaling import RewardScaler

        self.recurrent = cast("PolicySpec", policy.spec).state == "hub"
        self.learning_rate = config.learning_rate
        self.clips = (config.clip, config.clip_high or config.clip)
        self.entropy_coef = config.entropy_coef
        self.scaler = RewardScaler()

    def roles(self) -> dict[str, Role]:
        """The policy."""
        return {"policy": Role(self.policy)}

    def plan(self) -> Plan:
        """Epochs over shuffled minibatches; whole rows where the policy has a state."""
        config = self.config
        size = self.feed.table.batch_steps // config.minibatches
        return Plan(epochs=config.epochs, batch_size=size, whole_rows=self.recurrent)

    def steps(self) -> list[Step]:
        """One step on the joint loss."""
        config = self.config
        return [
            Step("policy", ("policy",), self.loss, config.learning_rate, clip=config.max_grad_norm, eps=1e-5)
        ]

    def before_update(self, progress: Progress) -> dict[str, float]:
        """Schedules of clip, entropy bonus and learning rate."""
        config, left = self.config, 1.0 - progress.fraction
        shrink = left if config.clip_schedule == "linear" else 1.0
        self.clips = (config.clip * shrink, (config.clip_high or config.clip) * shrink)
        self.entropy_coef = config.entropy_coef * (left if config.entropy_schedule == "linear" else 1.0)
        factor = left if config.learning_rate_schedule == "linear" else 1.0
        return {"policy": factor * self.learning_rate / config.learning_rate}

    def label(self, batch: Batch, roles: Roles, progress: Progress) -> dict[str, float]:
        """Adds advantage, target and old_value [T, N]; takes interrupted decisions out of valid."""
        from rollbus_learner import masked
        from rollbus_learner.algorithms import _ppo_label as labels
        from rollbus_learner.losses import explained_variance

        config = self.config
        with torch.no_grad():
            batch["valid"] = valid = labels.usable(batch)
            value, final_value = labels.values(roles["policy"], batch, config.value_source, self.recurrent)
            reward, discount = self._rewards(batch)
            advantage, target = labels.advantages(
                batch, reward, discount, value, final_value, config.gae_lambda
            )
            metrics = {
                "explained_variance": float(explained_variance(value[:-1], target, valid)),
                "advantage_std": float(masked.variance(advantage, valid).sqrt()),
                "reward_scale": self.reward_factor,
            }
            if config.normalise_advantage:
                advantage = masked.normalise(advantage, valid)
            batch |= {"advantage": advantage, "target": target, "old_value": value[:-1]}
            gap = labels.log_prob_gap(roles["policy"], batch, progress.updates, self.recurrent, GAP_SAMPLES)
        return metrics | gap

    def _rewards(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """Scaled reward and discount of each decision, [T, N]."""
        from rollbus_learner import estimators

        column = {
            name: batch[name].cpu().numpy()
            for name in ("reward", "num_steps", "terminated", "truncated", "valid", "episode", "step")
        }
        discount = estimators.decision_discount(column["num_steps"], self.config.gamma)
        reward = estimators.decision_reward(column["reward"], column["num_steps"], self.config.gamma)
        if self.config.reward_scaling == "running_std":
            done = column["terminated"] | column["truncated"]
            reward = self.scaler(reward, discount, done, column["valid"], column["episode"], column["step"])
        return reward * np.float32(self.config.reward_scale), discount

    @property
    def reward_factor(self) -> float:
        """What rewards are multiplied by now."""
        return self.config.reward_scale / self.scaler.scale

    def loss(self, roles: Roles, batch: Batch) -> Loss:
        """Clipped surrogate + value loss - entropy bonus on one minibatch."""
        from rollbus_accel.kernels.ppo_loss import ppo_loss
        from rollbus_learner import masked

        config, (low, high) = self.config, self.clips
        new = roles["policy"](batch, ("log_prob", "entropy", "value"))
        old_log_prob = batch["log_prob"]
        valid = masked.valid_mask(batch)
        found = ppo_loss(
            new["log_prob"], new["value"],
            new["entropy"] if self.entropy_coef else new["entropy"].detach(),
            old_log_prob, batch["advantage"], batch["target"], batch["old_value"],
            torch.ones_like(old_log_prob, dtype=torch.bool) if valid is None else valid,
            clip_low=low, clip_high=high, dual_clip=config.dual_clip, value_clip=config.value_clip,
            huber_delta=config.huber_delta, value_coef=config.value_coef, entropy_coef=self.entropy_coef,
        )  # fmt: skip
        count = old_log_prob.numel() if valid is None else found.num_valid
        trained = ("policy_loss", "value_loss", "entropy_loss")[: 3 if self.entropy_coef else 2]
        return Loss(
            terms={name: (getattr(found, name), count) for name in trained},
            metrics={name: (getattr(found, name), count) for name in _STATISTICS},
        )

    def after_step(self, roles: Roles, step: str, metrics: Mapping[str, float]) -> bool:
        """KL stop."""
        target = self.config.target_kl
        return bool(target) and metrics["approx_kl"] > 1.5 * target

    def after_update(self, batch: Batch, roles: Roles, metrics: Mapping[str, float]) -> None:
        """Observation statistics and the adaptive learning rate, once per update."""
        length = len(batch["valid"])
        seen = {name: column[:length] for name, column in batch.items() if name.startswith("obs/")}
        cast("Policy", roles["policy"]).update_normaliser(seen, batch["valid"])
        if self.config.adaptive_kl:
            self.learning_rate = adapted(self.learning_rate, metrics["approx_kl"], self.config.adaptive_kl)

    def publish(self, roles: Roles) -> dict[str, Tensor]:
        """The policy; without its critic unless actors record values."""
        tensors = roles["policy"].state_dict()
        if self.config.value_source == "actor":
            return dict(tensors)
        return {name: tensor for name, tensor in tensors.items() if not name.startswith("critic.")}

    def state(self) -> dict[str, Any]:
        """Adaptive learning rate and reward statistics."""
        return {"learning_rate": self.learning_rate, "reward": self.scaler.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        self.learning_rate = float(state["learning_rate"])
        self.scaler.load_state(state["reward"])


def adapted(learning_rate: float, kl: float, wanted: float) -> float:
    """The learning rate after an update that moved the policy by ``kl`` nats, ``wanted`` being right."""
    low, high = ADAPTIVE_RATE
    if kl > 2.0 * wanted:
        return max(low, learning_rate / ADAPTIVE_STEP)
    if 0.0 < kl < 0.5 * wanted:
        return min(high, learning_rate * ADAPTIVE_STEP)
    return learning_rate


def make(config: Config, spec: EnvSpec, policy: nn.Module, feed: Feed) -> PPO:
    """The algorithm for one learner."""
    return PPO(config, spec, policy, feed)
