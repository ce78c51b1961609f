"""What the algorithms have in common that learn a policy and its value function from whole chunks.

Each states its own labels and losses; here is what surrounds an update.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from rollbus_core.feed import Feed
from rollbus_learner.algorithm import OUTCOMES, Loss, Plan, Progress, Role, Step
from rollbus_learner.algorithms._cotraining import CoTraining
from rollbus_learner.algorithms._on_policy_config import OnPolicyConfig
from rollbus_wire.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from rollbus_learner.algorithm import Batch, Roles, Term
    from rollbus_learner.algorithms._novelty import Novelty
    from rollbus_policies.base import Policy, PolicySpec
    from rollbus_wire.spec import EnvSpec

#: Samples on which the log-probs of actor and learner are compared at most.
GAP_SAMPLES = 512


class OnPolicy(CoTraining):
    """A role "policy", which holds its own value function, and one step on a joint loss.

    With ``novelty_coef`` a role "novelty" with a step of its own.
    """

    config: OnPolicyConfig

    def __init__(self, config: OnPolicyConfig, spec: EnvSpec, policy: nn.Module, feed: Feed) -> None:
        super().__init__(config, spec, policy, feed)
        from rollbus_learner.reward_scaling import RewardScaler

        if config.normalise_per_task and not (spec.tasks and config.normalise_advantage):
            what = "one thing and has no tasks" if config.normalise_advantage else "not normalised at all"
            raise ConfigError(f"algorithm.normalise_per_task has no effect: {spec.name} is {what}; remove it")
        policy_spec = cast("PolicySpec", policy.spec)
        self.recurrent = policy_spec.state == "hub"
        #: What is asked of the critic on a minibatch.
        self.values = ("value", "value_loss") if policy_spec.value_loss else ("value",)
        self.learning_rate = config.learning_rate
        self.entropy_coef = config.entropy_coef
        self.scaler, self.novelty_scaler = RewardScaler(), RewardScaler()

    def roles(self) -> dict[str, Role]:
        """The same ones at each call."""
        if not hasattr(self, "_roles"):
            self._roles = {"policy": Role(self.policy)}
            if self.config.novelty_coef:
                from rollbus_learner.algorithms._novelty import Novelty

                frames = cast("PolicySpec", self.policy.spec).frame_stack
                self._roles["novelty"] = Role(Novelty(self.spec, frames))
        return self._roles

    def plan(self) -> Plan:
        """Epochs over shuffled minibatches; whole rows where the policy has a state."""
        config = self.config
        size = self.feed.table.batch_steps // config.minibatches
        unread = OUTCOMES if self.recurrent else OUTCOMES | {"start"}
        return Plan(config.epochs, size, whole_rows=self.recurrent, unread=unread)

    def steps(self) -> list[Step]:
        """One step on the joint loss; the prediction of what is known."""
        config = self.config
        steps = [
            Step(
                "policy",
                ("policy",),
                self.joint_loss,
                config.learning_rate,
                clip=config.max_grad_norm,
                eps=1e-5,
            )  # fmt: skip
        ]
        if config.novelty_coef:
            steps.append(Step("novelty", ("novelty",), self.novelty_loss, config.learning_rate))
        return steps

    def novelty_loss(self, roles: Roles, batch: Batch) -> Loss:
        """The error of one minibatch's observations."""
        from rollbus_learner import masked

        return Loss({"novelty_loss": masked.total(roles["novelty"](batch), masked.valid_mask(batch))})

    def value_term(self, new: Mapping[str, Tensor], batch: Batch, valid: Tensor | None) -> Term:
        """Value loss of the minibatch that ``new`` is of: the critic's own, or of its error."""
        from rollbus_learner import masked

        loss = new["value_loss"] if "value_loss" in new else self.value_errors(new["value"], batch)
        return masked.total(self.config.value_coef * loss, valid)

    def value_errors(self, value: Tensor, batch: Batch) -> Tensor:
        """What the error of ``value`` [B] costs, [B]."""
        return (value - batch["target"]) ** 2

    def before_update(self, progress: Progress) -> dict[str, float]:
        """Schedules of entropy bonus and learning rate."""
        config, left = self.config, 1.0 - progress.fraction
        self.entropy_coef = config.entropy_coef * (left if config.entropy_schedule == "linear" else 1.0)
        factor = left if config.learning_rate_schedule == "linear" else 1.0
        return {"policy": factor * self.learning_rate / config.learning_rate}

    def rewards(self, batch: Batch, roles: Roles) -> tuple[np.ndarray, np.ndarray]:
        """Scaled reward and discount of each decision, [T, N]; novelty is added."""
        from rollbus_learner import estimators

        config = self.config
        column = {
            name: batch[name].cpu().numpy()
            for name in ("reward", "num_steps", "terminated", "truncated", "valid", "episode", "step")
        }
        discount = estimators.decision_discount(column["num_steps"], config.gamma)
        reward = estimators.decision_reward(column["reward"], column["num_steps"], config.gamma)
        done = column["terminated"] | column["truncated"]
        history = (discount, done, column["valid"], column["episode"], column["step"])
        if config.reward_scaling == "running_std":
            reward = self.scaler(reward, *history)
        reward = reward * np.float32(config.reward_scale)
        if config.novelty_coef:
            from rollbus_learner.algorithms._novelty import reached

            found = self.novelty_scaler(reached(roles["novelty"], batch).cpu().numpy(), *history)
            reward = reward + np.float32(config.novelty_coef) * found
        return reward, discount

    @property
    def reward_factor(self) -> float:
        """What rewards are multiplied by now."""
        return self.config.reward_scale / self.scaler.scale

    def after_update(self, batch: Batch, roles: Roles, metrics: Mapping[str, float]) -> None:
        """Observation statistics, once per update."""
        length = len(batch["valid"])
        seen = {name: column[:length] for name, column in batch.items() if name.startswith("obs/")}
        cast("Policy", roles["policy"]).update_normaliser(seen, batch["valid"])
        if "novelty" in roles:
            cast("Novelty", roles["novelty"]).merge(seen, batch["valid"])

    def publish(self, roles: Roles) -> dict[str, Tensor]:
        """The policy; without its critic unless actors record values."""
        tensors = roles["policy"].state_dict()
        if self.config.value_source == "actor":
            return dict(tensors)
        return {name: tensor for name, tensor in tensors.items() if not name.startswith("critic.")}

    def state(self) -> dict[str, Any]:
        """Learning rate and reward statistics."""
        found = {"learning_rate": self.learning_rate, "reward": self.scaler.state()}
        return found | ({"novelty": self.novelty_scaler.state()} if self.config.novelty_coef else {})

    def load_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        self.learning_rate = float(state["learning_rate"])
        self.scaler.load_state(state["reward"])
        if self.config.novelty_coef:
            self.novelty_scaler.load_state(state["novelty"])
