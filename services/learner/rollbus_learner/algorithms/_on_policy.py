"""What the algorithms have in common that learn a policy and its value function from whole chunks.

Each states its own labels and losses; here are the settings, the feed and what surrounds an update.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import numpy as np
from pydantic import model_validator

from rollbus_core.config.models import option
from rollbus_core.feed import Feed, TableConfig
from rollbus_learner.algorithm import Algorithm, AlgorithmConfig, Plan, Progress, Role, Step

if TYPE_CHECKING:
    from torch import Tensor, nn

    from rollbus_learner.algorithm import Batch, Roles
    from rollbus_policies.base import Policy, PolicySpec
    from rollbus_wire.spec import EnvSpec

Schedule = Literal["constant", "linear"]
#: Samples on which the log-probs of actor and learner are compared at most.
GAP_SAMPLES = 512


class ActorCriticConfig(AlgorithmConfig):
    """Settings of all algorithms of this kind."""

    requires: ClassVar[frozenset[str]] = frozenset({"log_prob", "entropy", "value"})

    num_steps: int = option(128, "Decisions per row of one update.", "decisions", ge=1)
    epochs: int = option(4, "Passes over the samples of one update.", ge=1)
    minibatches: int = option(8, "Minibatches of one epoch.", ge=1)
    max_lag: int = option(
        1,
        "Updates between the version that acted and the one that learns; 0: actors wait for each update.",
        "updates",
        ge=0,
    )
    learning_rate: float = option(3e-4, "Step size of Adam.", gt=0)
    learning_rate_schedule: Schedule = option("constant", "linear: falls to 0 at run.total_steps.")
    gamma: float = option(0.99, "Discount per environment step.", ge=0, le=1)
    gae_lambda: float = option(0.95, "Trace decay of the advantage, once per decision.", ge=0, le=1)
    value_coef: float = option(0.5, "Weight of the value loss.", ge=0)
    entropy_coef: float = option(0.0, "Weight of the entropy bonus.", ge=0)
    entropy_schedule: Schedule = option("constant", "linear: entropy_coef falls to 0 at run.total_steps.")
    max_grad_norm: float = option(0.5, "Gradient norm limit; 0: none.", ge=0)
    normalise_advantage: bool = option(True, "Advantages of an update get mean 0 and deviation 1.")
    value_source: Literal["learner", "actor"] = option(
        "learner", "Who computes the values that advantages are made of; actor: recorded while acting."
    )
    reward_scaling: Literal["none", "constant", "running_std"] = option(
        "none", "running_std: rewards over the running deviation of the discounted return. Logs stay raw."
    )
    reward_scale: float = option(1.0, "Factor of the reward, with any scaling but none.", gt=0)

    @model_validator(mode="after")
    def _scale_has_effect(self) -> ActorCriticConfig:
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


class ActorCriticAlgorithm(Algorithm):
    """One role "policy", which holds its own value function, and one step on a joint loss."""

    config: ActorCriticConfig

    def __init__(self, config: ActorCriticConfig, spec: EnvSpec, policy: nn.Module, feed: Feed) -> None:
        super().__init__(config, spec, policy, feed)
        from rollbus_learner.reward_scaling import RewardScaler

        self.recurrent = cast("PolicySpec", policy.spec).state == "hub"
        self.learning_rate = config.learning_rate
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

    def loss(self, roles: Roles, batch: Batch) -> Any:
        """The joint loss of one minibatch."""
        raise NotImplementedError

    def before_update(self, progress: Progress) -> dict[str, float]:
        """Schedules of entropy bonus and learning rate."""
        config, left = self.config, 1.0 - progress.fraction
        self.entropy_coef = config.entropy_coef * (left if config.entropy_schedule == "linear" else 1.0)
        factor = left if config.learning_rate_schedule == "linear" else 1.0
        return {"policy": factor * self.learning_rate / config.learning_rate}

    def rewards(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
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

    def after_update(self, batch: Batch, roles: Roles, metrics: Mapping[str, float]) -> None:
        """Observation statistics, once per update."""
        length = len(batch["valid"])
        seen = {name: column[:length] for name, column in batch.items() if name.startswith("obs/")}
        cast("Policy", roles["policy"]).update_normaliser(seen, batch["valid"])

    def publish(self, roles: Roles) -> dict[str, Tensor]:
        """The policy; without its critic unless actors record values."""
        tensors = roles["policy"].state_dict()
        if self.config.value_source == "actor":
            return dict(tensors)
        return {name: tensor for name, tensor in tensors.items() if not name.startswith("critic.")}

    def state(self) -> dict[str, Any]:
        """Learning rate and reward statistics."""
        return {"learning_rate": self.learning_rate, "reward": self.scaler.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        self.learning_rate = float(state["learning_rate"])
        self.scaler.load_state(state["reward"])
