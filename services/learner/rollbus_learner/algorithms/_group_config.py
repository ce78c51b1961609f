"""Settings of the algorithms that compare episodes which began alike; no torch."""

from __future__ import annotations

from typing import ClassVar, Literal

from rollbus_core.config.models import option
from rollbus_core.feed import Feed, TableConfig
from rollbus_learner.algorithm import AlgorithmConfig
from rollbus_learner.algorithms._cotraining import CoTrainingConfig

#: How often a hub runs a lost member again from its group's seed.
MOST_LOSSES = 2

Ratio = Literal["token", "sequence", "sequence_mean"]
Mean = Literal["member", "token", "constant"]


class EpisodesConfig(AlgorithmConfig):
    """Settings of all algorithms that learn from whole episodes in groups."""

    #: What actors record besides the action.
    records: ClassVar[tuple[str, ...]] = ()

    num_groups: int = option(16, "Groups of one update.", "groups", ge=1)
    group_size: int = option(8, "Episodes that begin alike and are compared.", "episodes", ge=2)
    max_decisions: int = option(
        1, "Decisions that an episode may take; a longer one makes its group drop out.", "decisions", ge=1
    )
    epochs: int = option(1, "Passes over the episodes of one update.", ge=1)
    minibatches: int = option(1, "Minibatches of one epoch.", ge=1)
    max_lag: int = option(
        0, "Updates between the version that acted and the one that learns.", "updates", ge=0
    )
    learning_rate: float = option(1e-3, "Step size of Adam.", gt=0, le=1)
    max_grad_norm: float = option(1.0, "Gradient norm limit; 0: none.", ge=0)

    def feed(self, *, num_envs: int, num_slices: int, deterministic: bool) -> Feed:
        """Whole episodes, one per row; one update is num_groups x group_size of them."""
        rows, slice_rows = self.num_groups * self.group_size, num_envs // num_slices
        if slice_rows % self.group_size:
            raise ValueError(
                f"the {slice_rows} rows of a slice are not whole groups of algorithm.group_size "
                f"{self.group_size}; make env.num_envs {num_envs} a multiple of env.num_slices x "
                "algorithm.group_size"
            )
        if rows % slice_rows:
            raise ValueError(
                f"algorithm.num_groups {self.num_groups} x algorithm.group_size {self.group_size} = {rows} "
                f"episodes are not whole slices of {slice_rows} rows; change one of them or env.num_envs"
            )
        if deterministic and rows != num_envs:
            raise ValueError(
                f"run.deterministic: true needs one episode per row and update, but algorithm.num_groups x "
                f"algorithm.group_size = {rows} and env.num_envs = {num_envs}"
            )
        lag = 0 if deterministic else self.max_lag
        return Feed(
            table=TableConfig(batch_rows=rows, max_lag=lag, one_chunk_per_slice=deterministic),
            num_decisions=self.max_decisions,
            group_size=self.group_size,
            extras=self.records,
            extras_if_offered=("token_log_prob",) if self.records else (),
            summary=f"one update = {self.num_groups} groups x {self.group_size} episodes, "
            f"{self.epochs} epochs x {self.minibatches} minibatches, lag <= {lag}",
        )


class GroupConfig(CoTrainingConfig, EpisodesConfig):
    """Settings of those with an importance ratio."""

    requires: ClassVar[frozenset[str]] = frozenset({"log_prob"})
    masks_padding: ClassVar[bool] = True
    records: ClassVar[tuple[str, ...]] = ("log_prob",)
    #: What the clipped ratio is of: each token, the whole episode, or its mean per token.
    ratio: ClassVar[Ratio] = "token"
    #: What the loss is a mean over: members (each the mean of its tokens), tokens, or members of a
    #: constant length.
    mean: ClassVar[Mean] = "member"

    clip: float = option(0.2, "The ratio is clipped at 1 - clip.", gt=0, lt=1)
    clip_high: float | None = option(None, "... and at 1 + clip_high; empty: 1 + clip.", gt=0)
    kl_coef: float = option(0.0, "Weight of the KL to the policy that the run began with.", ge=0)
    entropy_coef: float = option(0.0, "Weight of the entropy bonus, per token.", ge=0)
