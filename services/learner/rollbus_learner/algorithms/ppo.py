"""Proximal policy optimisation (Schulman et al., 1707.06347) with GAE (1506.02438).

Where it differs from the paper and from stable-baselines3:
- collection goes on while the learner learns (``max_lag`` 1): the ratio is against the log-probs of the
  version that acted; ``max_lag: 0`` is the classical algorithm;
- values are recomputed by the learner before the first epoch (``value_source: learner``);
- advantages are normalised once over the whole update, not per minibatch;
- the KL stop comes after the step that exceeded it, and ends the update;
- where an episode was truncated, the value of its final observation is the bootstrap;
- ``gap_weight_limit``: for engines whose log-probs differ from the learner's, the ratio is against the
  learner's own at the start of the update, and advantages are weighted by min(exp(learner - actor), limit)
  (truncated importance sampling).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from pydantic import model_validator

from rollbus_core.config.models import option
from rollbus_core.feed import Feed
from rollbus_core.lazy import lazy_import
from rollbus_learner.algorithm import Loss, Progress
from rollbus_learner.algorithms._adaptive_rate import adapted
from rollbus_learner.algorithms._on_policy import GAP_SAMPLES, OnPolicy
from rollbus_learner.algorithms._on_policy_config import OnPolicyConfig, Schedule

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from rollbus_learner.algorithm import Batch, Roles, Term
    from rollbus_wire.spec import EnvSpec
else:
    torch = lazy_import("torch")

needs = ("torch",)

#: What the loss tells besides its terms.
_STATISTICS = ("entropy", "approx_kl", "clip_fraction", "value")


class Config(OnPolicyConfig):
    """Settings of PPO."""

    name: str = "ppo"
    adaptive_kl: float = option(
        0.0,
        "Wanted KL per update: the learning rate is divided by 1.5 above twice of it and multiplied by "
        "1.5 below half of it; 0: off.",
        "nats",
        ge=0,
    )
    clip: float = option(
        0.2, "The ratio is clipped at 1 - clip, and at 1 + clip if clip_high is not set.", gt=0, lt=1
    )
    clip_high: float | None = option(None, "Upper clip of the ratio, where it differs from clip.", gt=0)
    clip_schedule: Schedule = option("constant", "linear: both clips fall to 0 at run.total_steps.")
    dual_clip: float = option(0.0, "Bound c > 1 of the loss of negative advantages; 0: off.", ge=0)
    value_clip: float = option(0.0, "How far the value may move from its old one in an update; 0: any.", ge=0)
    huber_delta: float = option(0.0, "Value errors beyond this count linearly; 0: squared error.", ge=0)
    target_kl: float = option(
        0.0, "The update ends once a minibatch's KL exceeds 1.5 x this; 0: never.", "nats", ge=0
    )
    gap_weight_limit: float = option(
        0.0,
        "Largest weight exp(learner - actor) of an advantage, for engines whose log-probs differ from the "
        "learner's (2 is usual); 0: no weights.",
        ge=0,
    )

    @property
    def requires_by_settings(self) -> frozenset[str]:
        """Limits of the value error need one."""
        return frozenset({"value_error"} if self.value_clip or self.huber_delta else ())

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        if self.dual_clip and self.dual_clip <= 1:
            raise ValueError(
                f"dual_clip {self.dual_clip} does not bound anything; give more than 1, or 0 for off"
            )
        if self.adaptive_kl and self.learning_rate_schedule != "constant":
            raise ValueError(
                "adaptive_kl and learning_rate_schedule: linear both set the learning rate; choose one"
            )
        return self


class Behaviour(NamedTuple):
    """What a minibatch of B samples is compared with."""

    #: [B], of the policy that the ratio is clipped against.
    log_prob: Tensor
    #: [B].
    advantage: Tensor
    #: Bool [B]: samples that count; None: all.
    valid: Tensor | None
    #: Reported.
    metrics: dict[str, Term]


class PPO(OnPolicy):
    """The clipped surrogate on advantages that were computed once per update."""

    config: Config

    def __init__(self, config: Config, spec: EnvSpec, policy: nn.Module, feed: Feed) -> None:
        super().__init__(config, spec, policy, feed)
        self.clips = (config.clip, config.clip_high or config.clip)

    def before_update(self, progress: Progress) -> dict[str, float]:
        """Schedules of clip, entropy bonus and learning rate."""
        config = self.config
        shrink = 1.0 - progress.fraction if config.clip_schedule == "linear" else 1.0
        self.clips = (config.clip * shrink, (config.clip_high or config.clip) * shrink)
        return super().before_update(progress)

    def label(self, batch: Batch, roles: Roles, progress: Progress) -> dict[str, float]:
        """Adds advantage, target and old_value [T, N]; takes interrupted decisions out of valid."""
        from rollbus_learner import masked
        from rollbus_learner.algorithms import _ppo_label as labels
        from rollbus_learner.losses import explained_variance

        config, policy = self.config, roles["policy"]
        with torch.no_grad():
            batch["valid"] = valid = labels.usable(batch)
            value, final_value = labels.values(policy, batch, config.value_source, self.recurrent)
            reward, discount = self.rewards(batch, roles)
            advantage, target = labels.advantages(
                batch, reward, discount, value, final_value, config.gae_lambda
            )
            metrics = {
                "explained_variance": float(explained_variance(value[:-1], target, valid)),
                "advantage_std": float(masked.variance(advantage, valid).sqrt()),
                "reward_scale": self.reward_factor,
            }
            if config.normalise_advantage:
                advantage = labels.normalised(advantage, batch, config.normalise_per_task)
            batch |= {"advantage": advantage, "target": target, "old_value": value[:-1]}
            gap = labels.log_prob_gap(policy, batch, progress.updates, self.recurrent, GAP_SAMPLES)
            if config.gap_weight_limit:
                metrics |= labels.weigh_gap(policy, batch, self.recurrent, config.gap_weight_limit)
        return metrics | gap

    def loss(self, roles: Roles, batch: Batch) -> Loss:
        """Clipped surrogate + value loss - entropy bonus on one minibatch."""
        from rollbus_accel.kernels.ppo_loss import ppo_loss
        from rollbus_learner import masked

        config, (low, high) = self.config, self.clips
        new = roles["policy"](batch, ("log_prob", "entropy", *self.values))
        old = self.behaviour(batch, new["log_prob"].detach(), masked.valid_mask(batch))
        valid = old.valid
        found = ppo_loss(
            new["log_prob"], new["value"],
            new["entropy"] if self.entropy_coef else new["entropy"].detach(),
            old.log_prob, old.advantage, batch["target"], batch["old_value"],
            torch.ones_like(old.log_prob, dtype=torch.bool) if valid is None else valid,
            clip_low=low, clip_high=high, dual_clip=config.dual_clip, value_clip=config.value_clip,
            huber_delta=config.huber_delta, value_coef=config.value_coef, entropy_coef=self.entropy_coef,
        )  # fmt: skip
        if "value_loss" in new:
            found = found._replace(value_loss=self.value_term(new, batch, valid)[0])
        count = old.log_prob.numel() if valid is None else found.num_valid
        trained = ("policy_loss", "value_loss", "entropy_loss")[: 3 if self.entropy_coef else 2]
        return Loss(
            terms={name: (getattr(found, name), count) for name in trained},
            metrics={name: (getattr(found, name), count) for name in _STATISTICS} | old.metrics,
        )

    def value_errors(self, value: Tensor, batch: Batch) -> Tensor:
        """What the error of ``value`` [B] costs, [B], within the limits."""
        from rollbus_learner.losses import value_loss

        config = self.config
        return value_loss(value, batch["target"], batch["old_value"], config.value_clip, config.huber_delta)

    def behaviour(self, batch: Batch, log_prob: Tensor, valid: Tensor | None) -> Behaviour:
        """What the ratio of ``log_prob`` [B], that of now, is against."""
        return Behaviour(batch["log_prob"], batch["advantage"], valid, {})

    def after_step(self, roles: Roles, step: str, metrics: Mapping[str, float]) -> bool:
        """KL stop."""
        target = self.config.target_kl
        return bool(target) and metrics["approx_kl"] > 1.5 * target

    def after_update(self, batch: Batch, roles: Roles, metrics: Mapping[str, float]) -> None:
        """Observation statistics and the adaptive learning rate, once per update."""
        super().after_update(batch, roles, metrics)
        if self.config.adaptive_kl:
            self.learning_rate = adapted(self.learning_rate, metrics["approx_kl"], self.config.adaptive_kl)


def make(config: Config, spec: EnvSpec, policy: nn.Module, feed: Feed) -> PPO:
    """The algorithm for one learner."""
    return PPO(config, spec, policy, feed)
