"""What the learner makes of several tasks: advantages of each, figures of each, refusals."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rollbus_core.feed import Feed, TableConfig
from rollbus_learner.algorithm import Algorithm, AlgorithmConfig
from rollbus_learner.algorithms._ppo_label import normalised
from rollbus_learner.batch_metrics import describe
from rollbus_wire.errors import ConfigError
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec, TaskSpec

SPEC = EnvSpec(
    "two", {"task": ArraySpec("int64", (), 0, 1, layout="onehot")}, ActionSpec("discrete", num=[2]),
    has_success=True,
    tasks=[TaskSpec("a", action=[0], num=[1], has_success=True), TaskSpec("b", action=[0], num=[2])],
)  # fmt: skip


def test_advantages_of_each_task_by_themselves() -> None:
    advantage = torch.tensor([[1.0, 100.0], [3.0, 300.0], [9.0, 900.0]])
    batch = {"valid": torch.tensor([[True] * 2, [True] * 2, [False] * 2]),
             "obs/task": torch.tensor([[0, 1]] * 4)}  # fmt: skip
    found = normalised(advantage, batch, per_task=True)
    half = 0.5**0.5  # mean 2, deviation sqrt 2
    torch.testing.assert_close(found, torch.tensor([[-half, -half], [half, half], [0.0, 0.0]]))
    assert not torch.allclose(normalised(advantage, batch, per_task=False), found)


def test_metrics_of_each_task() -> None:
    batch = {
        "valid": torch.ones(1, dtype=torch.bool), "version": torch.zeros(1, dtype=torch.int64),
        "final_return": torch.tensor([1.0, 3.0, 10.0]), "final_length": torch.tensor([5, 7, 9]),
        "final_success_once": torch.tensor([1, 0, -1], dtype=torch.int8),
        "final_obs/task": torch.tensor([0, 0, 1]),
    }  # fmt: skip
    found = describe(batch, 0, SPEC)
    assert (found["episodes/a"], found["return_mean/a"], found["length_mean/a"]) == (2, 2.0, 6.0)
    assert found["success_rate/a"] == found["success_rate"] == 0.5
    assert found["return_mean/b"] == 10.0 and "success_rate/b" not in found


def test_an_algorithm_that_does_not_mask_is_refused() -> None:
    feed = Feed(table=TableConfig(batch_steps=8), num_decisions=4)
    with pytest.raises(ConfigError, match="does not leave out what is padding"):
        Algorithm(AlgorithmConfig(name="dqn"), SPEC, nn.Linear(1, 1), feed)
