"""What algorithms that learn from a data set alone share: its table, and nothing collected."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from rollbus_core.config.models import option
from rollbus_core.feed import Feed, TableConfig
from rollbus_learner.algorithm import Progress
from rollbus_learner.algorithms._replay import Replay, TransitionConfig

if TYPE_CHECKING:
    from rollbus_learner.algorithm import Batch, Roles

#: The table of the data.
DEMOS = "demos"


class OfflineConfig(TransitionConfig):
    """Settings of draws from data."""

    steps_per_update: int = option(10, "Gradient steps of one update.", ge=1)
    learning_rate_schedule: Literal["constant", "cosine"] = option(
        "constant", "cosine: the policy's falls to 0 at the end of the run, along half a cosine."
    )

    def feed(self, *, num_envs: int, num_slices: int, deterministic: bool) -> Feed:
        """Uniform draws of transitions of the data."""
        return Feed(
            table=TableConfig(sampler="replay", max_bytes=self.max_bytes),
            num_decisions=self.num_steps, unit="step", n_step=self.n_step,
            num_batches=self.steps_per_update,
            batch_size=self.batch_size,
            summary=f"one update = {self.steps_per_update} gradient steps on {self.batch_size} transitions "
            "of the data each",
        )  # fmt: skip

    def feeds(self, *, num_envs: int, num_slices: int, deterministic: bool) -> dict[str, Feed]:
        """The data alone."""
        return {DEMOS: self.feed(num_envs=num_envs, num_slices=num_slices, deterministic=deterministic)}


class Offline(Replay):
    """Observation statistics are there before the first step: no random steps were collected."""

    def before_update(self, progress: Progress) -> dict[str, float]:
        """The schedule of the policy's learning rate."""
        factors = super().before_update(progress)
        if self.config.learning_rate_schedule == "cosine":
            factors["policy"] = 0.5 * (1.0 + math.cos(math.pi * progress.fraction))
        return factors

    def label(self, batch: Batch, roles: Roles, progress: Progress) -> dict[str, float]:
        """Those of the first batch, before it is learned from."""
        metrics = super().label(batch, roles, progress)
        if not progress.updates:
            self.after_update(batch, roles, {})
        return metrics
