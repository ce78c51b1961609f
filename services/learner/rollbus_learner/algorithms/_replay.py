"""What algorithms that learn from replayed transitions share: the table, the draw, rewards and discounts.

Symbols: B transitions of a minibatch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, cast

from rollbus_core.config.models import option
from rollbus_core.feed import TRAINING_TABLE, Feed, Hindsight, TableConfig
from rollbus_core.lazy import lazy_import
from rollbus_learner.algorithm import Algorithm, AlgorithmConfig, Plan, Progress
from rollbus_wire.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor, nn

    from rollbus_learner.algorithm import Batch, Roles
    from rollbus_policies.base import Policy
    from rollbus_wire.spec import EnvSpec
else:
    torch = lazy_import("torch")


class TransitionConfig(AlgorithmConfig):
    """Settings of transitions, collected or from data."""

    excludes: ClassVar[Mapping[str, str]] = {
        "recurrent": "learns from single steps; use a policy without recurrent state"
    }

    num_steps: int = option(16, "Decisions per row of one chunk on its way to the table.", "decisions", ge=1)
    batch_size: int = option(256, "Transitions of one gradient step.", ge=1)
    n_step: int = option(
        1,
        "Decisions of a transition: n-step returns.",
        "decisions",
        ge=1,
    )
    gamma: float = option(0.99, "Discount per environment step.", ge=0, le=1)
    max_bytes: int = option(4 << 30, "Bytes each table may take.", "bytes", ge=1 << 20)


class ReplayConfig(TransitionConfig):
    """Settings of the replay table and of what is drawn from it."""

    steps_per_update: int = option(64, "Steps collected between two updates.", "steps", ge=1)
    updates_per_step: float = option(1.0, "Gradient steps per collected step.", gt=0)
    start_steps: int = option(1000, "Steps that act at random before learning begins.", "steps", ge=1)
    max_steps: int = option(1_000_000, "Transitions the replay table keeps.", "steps", ge=1)
    her_goal: str = option("", "Observation that is the goal: hindsight experience replay; empty: off.")
    her_achieved: str = option("", "Observation that is compared with it.")
    her_reward: str = option(
        "", "module:function of achieved [B, ...] and goal [B, ...]: reward [B], or (reward, terminated)."
    )
    her_fraction: float = option(0.8, "Part of the transitions that get a goal reached later.", gt=0, le=1)
    her_horizon: int = option(
        1000,
        "Decisions ahead, the transition's own counted, from which that goal may come.",
        "decisions",
        ge=1,
        le=1 << 16,
    )
    priority: float = option(
        0.0, "Transitions are drawn by their last error to this power (1511.05952: 0.6); 0: uniformly.", ge=0
    )
    priority_beta: float = option(
        0.4, "How far importance weights undo that at the start; at the end fully.", ge=0, le=1
    )

    @property
    def hindsight(self) -> Hindsight | None:
        """None: off. Raises ValueError where only some of its settings are there."""
        given = {"goal": self.her_goal, "achieved": self.her_achieved, "reward": self.her_reward}
        missing = [name for name, value in given.items() if not value]
        if len(missing) == len(given):
            return None
        if missing:
            raise ValueError(
                f"algorithm.her_{missing[0]} is empty: hindsight needs her_goal, her_achieved and her_reward"
            )
        return Hindsight(**given, fraction=self.her_fraction, horizon=self.her_horizon)

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
                priority_exponent=self.priority,
            ),
            num_decisions=self.num_steps,
            unit="step",
            n_step=self.n_step,
            hindsight=self.hindsight,
            num_batches=num_batches,
            batch_size=self.batch_size,
            summary=f"one update = {self.steps_per_update} steps collected over {num_envs} rows, "
            f"{num_batches} gradient steps on {self.batch_size} transitions each, after "
            f"{self.start_steps} random steps",
        )


class Replay(Algorithm):
    """Draws transitions; a subclass gives roles and steps, and its losses go through `weighed`."""

    def __init__(self, config: AlgorithmConfig, spec: EnvSpec, policy: nn.Module, feed: Feed) -> None:
        super().__init__(config, spec, policy, feed)
        if cast("Policy", policy).spec.state != "none":
            raise ConfigError(f"algorithm.name: {config.name} {self.config.excludes['recurrent']}")
        self._errors: list[tuple[Tensor, Tensor]] = []

    def plan(self) -> Plan:
        """The drawn minibatches, one after the other."""
        return Plan(batch_size=self.config.batch_size, ordered=True)

    def label(self, batch: Batch, roles: Roles, progress: Progress) -> dict[str, float]:
        """Adds decision_reward, discount (0 where terminated); masks interrupted steps."""
        label_returns(batch, self.config.gamma)
        self._errors = []
        if "probability" in batch:
            start = self.config.priority_beta
            beta = start + progress.fraction * (1.0 - start)
            batch["weight"] = importance(batch["probability"], beta, batch["valid"])
            return {"weight": float(batch["weight"].mean())}
        return {}

    def weighed(self, loss: Tensor, error: Tensor, batch: Batch) -> Tensor:
        """``loss`` [B] with importance weights where draws go by priority; ``error`` [B] is the next one."""
        if "weight" not in batch:
            return loss
        self._errors.append((batch["drawn"], error.detach().abs()))
        return loss * batch["weight"]

    def priorities(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """The last errors."""
        if not self._errors:
            return {}
        steps, errors = (torch.cat(parts).cpu().numpy() for parts in zip(*self._errors))
        return {TRAINING_TABLE: (steps, errors)}

    def after_update(self, batch: Batch, roles: Roles, metrics: Mapping[str, float]) -> None:
        """Observation statistics, once per update."""
        seen = {name: column for name, column in batch.items() if name.startswith("obs/")}
        cast("Policy", roles["policy"]).update_normaliser(seen, batch["valid"])

    def publish(self, roles: Roles) -> dict[str, Tensor]:
        """The policy; actors need no critic."""
        tensors = roles["policy"].state_dict()
        return {name: tensor for name, tensor in tensors.items() if not name.startswith("critic.")}


def label_returns(batch: Batch, gamma: float) -> None:
    """Add ``decision_reward`` ``sum_{k<n} g^k r_k`` and ``discount`` ``g^n (1 - term)``; mask interrupted."""
    n, reward = batch.get("n_step_num", batch["num_steps"]), batch.get("n_step_reward", batch["reward"])
    place = torch.arange(reward.shape[-1], device=reward.device)
    executed = torch.where(place < n[:, None], reward, torch.zeros_like(reward))
    batch["decision_reward"] = (executed * gamma**place).sum(-1)
    batch["discount"] = gamma ** n.to(reward.dtype) * (~batch["terminated"]).to(reward.dtype)
    batch["valid"] = batch["valid"] & ~batch["interrupted"]


def check_delay(delay: int, num_batches: int) -> None:
    """Raise ValueError where one update has too few gradient steps for the policy to be trained at all."""
    if delay > num_batches:
        raise ValueError(
            f"algorithm.policy_delay {delay} exceeds the {num_batches} gradient steps of one update, so the "
            "policy would never be trained; raise algorithm.steps_per_update"
        )


def importance(probability: Tensor, beta: float, valid: Tensor) -> Tensor:
    """``(p / min p) ^ -beta`` float32 [B]: at most 1 (1511.05952, section 3.4)."""
    least = torch.where(valid, probability, torch.ones_like(probability)).amin()
    return ((probability / least) ** -beta).float().clamp(max=1.0)


def observed(batch: Batch, which: str) -> Batch:
    """The observations ``obs/...`` (``which`` "") or ``next_obs/...`` ("next_") as ``obs/...``."""
    return {
        name.removeprefix(which): column for name, column in batch.items() if name.startswith(f"{which}obs/")
    }
