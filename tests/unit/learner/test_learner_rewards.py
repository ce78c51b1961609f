"""A reward of one's own, by hand: where it goes, and what the function sees."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rollbus_learner.rewards import RewardSource
from rollbus_wire.errors import ConfigError


def moved(columns):
    """How far a decision moved, and nothing else."""
    return (columns["next_obs/x"] - columns["obs/x"])[..., 0]


def wide(columns):
    return np.zeros(3)


def broken(columns):
    return np.full(columns["reward"].shape[:-1], np.nan)


HERE = f"{__name__}:"


def chunk():
    """Two decisions of one row; the first one ends its episode at 5, the next begins at 1."""
    return {
        "obs/x": torch.tensor([0.0, 1.0, 4.0]).reshape(3, 1, 1), "final_obs/x": torch.tensor([[5.0]]),
        "final_slot": torch.tensor([[0], [-1]]), "reward": torch.ones(2, 1, 3),
        "valid": torch.tensor([[True], [True]]), "terminated": torch.tensor([[True], [False]]),
    }  # fmt: skip


def test_it_is_added_at_the_first_step_and_sees_the_final_observation():
    batch = chunk()
    metrics = RewardSource(HERE + "moved", 0.5).add(batch)
    assert batch["reward"][:, 0].tolist() == [[3.5, 1.0, 1.0], [2.5, 1.0, 1.0]]
    assert metrics == {"own_reward": 4.0}


def test_replayed_steps_have_their_next_observation():
    batch = {
        "obs/x": torch.zeros(2, 1), "next_obs/x": torch.tensor([[2.0], [7.0]]), "reward": torch.zeros(2, 1),
        "valid": torch.tensor([True, False]),
    }  # fmt: skip
    assert RewardSource(HERE + "moved", 1.0).add(batch) == {"own_reward": 2.0}
    assert batch["reward"].flatten().tolist() == [2.0, 0.0]


def test_what_is_not_right_is_refused():
    with pytest.raises(ConfigError, match=r"wide gave \[3\], one number per decision is \[2, 1\]"):
        RewardSource(HERE + "wide", 1.0).add(chunk())
    with pytest.raises(ConfigError, match="not finite"):
        RewardSource(HERE + "broken", 1.0).add(chunk())
    with pytest.raises(ConfigError, match="learner.reward_function"):
        RewardSource(HERE + "nothing", 1.0)
