"""Stage ``sft``: learn from data sets: cloning, or offline reinforcement learning."""

from __future__ import annotations

from rollbus_launch.stages._train import TrainStage


class Config(TrainStage):
    """Settings of a training."""
