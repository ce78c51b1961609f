"""The contract every algorithm is written against. The learner's loop knows nothing else of one.

An algorithm file has ``Config`` (an `AlgorithmConfig`), ``needs`` (packages) and
``make(config, spec, policy, feed) -> Algorithm``; it imports without torch.
A metric ``log_prob_gap`` of `Algorithm.label` is the mean |log-prob difference| of actor and learner
at equal version, absent where no sample has the learner's version.
Symbols: T decisions, N rows, B samples of a minibatch. A batch is a map of tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict

from rollbus_core.feed import TRAINING_TABLE, Feed
from rollbus_wire.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor, nn

    from rollbus_wire.spec import EnvSpec

    Batch = dict[str, Tensor]
    Roles = Mapping[str, nn.Module]


class AlgorithmConfig(BaseModel):
    """Base of the ``algorithm`` section; each algorithm's `Config` adds its own keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = "ppo"
    #: What the policy must offer, see `rollbus_core.config.checks.CAPABILITIES`.
    requires: ClassVar[frozenset[str]] = frozenset()
    #: It must offer one of these, too.
    requires_one_of: ClassVar[frozenset[str]] = frozenset()

    #: What the policy may not offer -> why.
    excludes: ClassVar[Mapping[str, str]] = {}
    #: Whether it learns from labels of a data set, which the policy is told (`policy.condition`).
    needs_label: ClassVar[bool] = False
    #: Whether action elements that are padding in a row count for nothing in it; if not, it is refused where
    #: the tasks of a run differ in size.
    masks_padding: ClassVar[bool] = False

    @property
    def requires_by_settings(self) -> frozenset[str]:
        """What these settings need beyond `requires`: not among what policies offer, but `lacks` may tell."""
        return frozenset()

    @property
    def imitates(self) -> bool:
        """Whether it learns nothing from the rewards of data, so that decisions may hold several actions."""
        return "cloning_loss" in self.requires_one_of

    @property
    def begins_with(self) -> str:
        """What the weights must come from (`run.start_from`), for people; "": it may begin with new ones."""
        return ""

    def unfit_start(self, before: AlgorithmConfig) -> str:
        """Why a run may not begin with the weights of one with these settings, for people; "": it may."""
        return ""

    def feed(self, *, num_envs: int, num_slices: int, deterministic: bool) -> Feed:
        """What actors record and what one update consumes; no torch."""
        raise NotImplementedError

    def feeds(self, *, num_envs: int, num_slices: int, deterministic: bool) -> dict[str, Feed]:
        """Stream -> its feed, the main one first; no torch.

        A stream is drawn from the table of its name. Actors fill "train", data sources all others; without
        "train" nothing is collected. In a batch the main stream's columns have their own names, those of
        others are prefixed, "demos/obs/x"; `of_stream` takes them apart.
        """
        feed = self.feed(num_envs=num_envs, num_slices=num_slices, deterministic=deterministic)
        return {TRAINING_TABLE: feed}


@dataclass
class Role:
    """One network of an algorithm: policy, critic, target, ..."""

    module: nn.Module
    #: Whether a step may train it.
    trainable: bool = True
    #: Whether checkpoints hold it.
    saved: bool = True


@dataclass
class Plan:
    """How one batch is gone through.

    ``epochs`` passes over minibatches of ``batch_size`` samples in a random order; with
    ``whole_rows`` a minibatch holds whole rows [T, n] (recurrent policies). ``ordered``: the batch
    already consists of minibatches, taken one after the other. ``unread``: columns that no step reads,
    so that minibatches are made without them.
    """

    epochs: int = 1
    batch_size: int = 0
    whole_rows: bool = False
    ordered: bool = False
    unread: frozenset[str] = frozenset()


#: Columns that labels are made of, and losses are not: what came of a decision, and where it belongs.
OUTCOMES = frozenset(
    {"reward", "terminated", "truncated", "interrupted", "final_slot", "episode", "step", "version"}
)

#: A sum and the number of samples it is over; reduced over micro-batches and ranks, then divided.
Term = tuple["Tensor", "Tensor | int"]


@dataclass
class Loss:
    """What `Step.loss` returns. The loss is the sum over ``terms`` of numerator / count."""

    terms: dict[str, Term]
    #: Reported, not trained on.
    metrics: dict[str, Term] = field(default_factory=dict)


@dataclass
class Step:
    """One optimiser step on a minibatch; steps run in their order, gradients reach ``trains``."""

    name: str
    trains: tuple[str, ...]
    loss: Callable[[Roles, Batch], Loss]
    learning_rate: float
    #: Gradient norm limit, 0: none.
    clip: float = 0.0
    #: Runs at every so many minibatches.
    every: int = 1
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8


@dataclass
class Progress:
    """Where the run stands; given to schedules."""

    updates: int
    env_steps: int
    total_steps: int
    #: 0: only steps end the run.
    total_updates: int = 0

    @property
    def fraction(self) -> float:
        """Part of the run that is done, in [0, 1]."""
        by_updates = self.updates / self.total_updates if self.total_updates else 0.0
        return min(1.0, max(by_updates, self.env_steps / max(1, self.total_steps)))


def of_stream(batch: Batch, name: str) -> Batch:
    """The columns of stream ``name``, without its prefix; empty if this update has none."""
    prefix = f"{name}/"
    return {key[len(prefix) :]: column for key, column in batch.items() if key.startswith(prefix)}


class Algorithm:
    """One algorithm. Subclasses override; the order below is the order of calls."""

    def __init__(self, config: Any, spec: EnvSpec, policy: nn.Module, feed: Feed) -> None:
        self.config, self.spec, self.policy, self.feed = config, spec, policy, feed
        if spec.padded and not getattr(config, "masks_padding", False):
            raise ConfigError(
                f"algorithm.name: {config.name} does not leave out what is padding, and the tasks of "
                f"{spec.name} differ in what they observe or do; take one that does (docs/algorithms.md, "
                "Several tasks), or tasks of one size"
            )

    def roles(self) -> dict[str, Role]:
        """All networks by name; "policy" is among them."""
        raise NotImplementedError

    def plan(self) -> Plan:
        """How to go through it."""
        raise NotImplementedError

    def steps(self) -> list[Step]:
        """What to optimise, in order."""
        raise NotImplementedError

    def wants_more(self, batch: Batch, num_batches: int) -> bool:
        """Whether to sample on at the same version before learning from these ``num_batches`` as one."""
        return False

    def label(self, batch: Batch, roles: Roles, progress: Progress) -> dict[str, float]:
        """Add columns to ``batch`` without gradient, once per update; returns metrics."""
        return {}

    def before_update(self, progress: Progress) -> dict[str, float]:
        """Schedules: learning-rate factor per step name."""
        return {}

    def after_step(self, roles: Roles, step: str, metrics: Mapping[str, float]) -> bool:
        """Moving averages; True skips the rest of this update (KL stop)."""
        return False

    def after_update(self, batch: Batch, roles: Roles, metrics: Mapping[str, float]) -> None:
        """Normaliser statistics, adaptive rates: once, after the last minibatch."""

    def priorities(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Stream -> (drawn int64 [B], priority float32 [B]) of this update, for tables that draw by it."""
        return {}

    def publish(self, roles: Roles) -> dict[str, torch.Tensor]:
        """What actors get: the tensors of the policy's `state_dict`, extra modules prefixed."""
        return dict(roles["policy"].state_dict())

    def state(self) -> dict[str, Any]:
        """Numbers of its own for the checkpoint (adaptive rate, running scale)."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
