"""An algorithm plug-in with batch arithmetic."""

from typing import ClassVar

from rollbus_core.config.models import option
from rollbus_core.feed import Feed, TableConfig
from rollbus_learner.algorithm import AlgorithmConfig

needs: tuple = ()


class Config(AlgorithmConfig):
    """Learns from log-probabilities."""

    requires: ClassVar[frozenset[str]] = frozenset({"log_prob"})
    name: str = "learn"
    num_steps: int = option(16, "Decisions per row of one update.", "decisions", ge=1)
    learning_rate: float = option(3e-4, "Step size.", gt=0)
    max_lag: int = option(1, "Lag.", "updates", ge=0)
    milestones: tuple[float, ...] = option((), "Where the step size falls.")

    def feed(self, *, num_envs: int, num_slices: int, deterministic: bool) -> Feed:
        steps = num_envs * self.num_steps
        if steps % 4:
            raise ValueError(f"env.num_envs x algorithm.num_steps = {steps} is no multiple of 4")
        table = TableConfig(batch_steps=steps, max_lag=self.max_lag, one_chunk_per_slice=deterministic)
        return Feed(table=table, num_decisions=self.num_steps, summary=f"{steps} samples")
