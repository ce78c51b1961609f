"""Stage ``rl``: reinforcement learning, from an earlier stage's policy or from new weights."""

from __future__ import annotations

from rollbus_launch.stages._train import TrainStage


class Config(TrainStage):
    """Settings of a training."""
