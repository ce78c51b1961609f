"""Settings of the algorithms that learn a policy and its value function from whole chunks; no torch."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import model_validator

from rollbus_core.config.models import option
from rollbus_core.feed import Feed, TableConfig
from rollbus_learner.algorithms._cotraining import CoTrainingConfig

Schedule = Literal["constant", "linear"]


class OnPolicyConfig(CoTrainingConfig):
    """Settings of all algorithms of this kind."""

    requires: ClassVar[frozenset[str]] = frozenset({"log_prob", "entropy", "value"})
    masks_padding: ClassVar[bool] = True

    num_steps: int = option(128, "Decisions per row of one update.", "decisions", ge=1)
    epochs: int = option(4, "Passes over the samples of one update.", ge=1)
    minibatches: int = option(8, "Minibatches of one epoch.", ge=1)
    max_lag: int = option(
        1,
        "Updates between the version that acted and the one that learns; 0: actors wait for each update.",
        "updates",
        ge=0,
    )
    learning_rate: float = option(3e-4, "Step size of Adam.", gt=0, le=1)
    learning_rate_schedule: Schedule = option("constant", "linear: falls to 0 at run.total_steps.")
    gamma: float = option(0.99, "Discount per environment step.", ge=0, le=1)
    gae_lambda: float = option(0.95, "Trace decay of the advantage, once per decision.", ge=0, le=1)
    value_coef: float = option(0.5, "Weight of the value loss.", ge=0)
    entropy_coef: float = option(0.0, "Weight of the entropy bonus.", ge=0)
    entropy_schedule: Schedule = option("constant", "linear: entropy_coef falls to 0 at run.total_steps.")
    max_grad_norm: float = option(0.5, "Gradient norm limit; 0: none.", ge=0)
    normalise_advantage: bool = option(True, "Advantages of an update get mean 0 and deviation 1.")
    normalise_per_task: bool = option(
        False, "Advantages of each task by themselves; with normalise_advantage and several tasks."
    )
    value_source: Literal["learner", "actor"] = option(
        "learner", "Who computes the values that advantages are made of; actor: recorded while acting."
    )
    reward_scaling: Literal["none", "constant", "running_std"] = option(
        "none", "running_std: rewards over the running deviation of the discounted return. Logs stay raw."
    )
    reward_scale: float = option(1.0, "Factor of the reward, with any scaling but none.", gt=0)
    novelty_coef: float = option(
        0.0, "Reward for what is new to the learner (RND), in deviations of its return; 0: none.", ge=0
    )

    @model_validator(mode="after")
    def _scale_has_effect(self) -> OnPolicyConfig:
        if self.reward_scaling == "none" and self.reward_scale != 1.0:
            raise ValueError(
                f"reward_scale {self.reward_scale} has no effect with reward_scaling: none; use constant"
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
