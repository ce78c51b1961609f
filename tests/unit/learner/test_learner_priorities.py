"""Prioritised replay in the learner: weights by hand, errors that go back, uniform draws as before."""

import numpy as np
import pytest
import torch
from learner_tiny import SPEC, TinyPolicy, built, step_batch

from rollbus_learner.algorithm import Progress
from rollbus_learner.algorithms import rlpd, sac
from rollbus_learner.algorithms._replay import importance


def made(**settings):
    torch.manual_seed(0)
    config = sac.Config(batch_size=4, steps_per_update=1, critic_hidden=[8], **settings)
    feed = config.feed(num_envs=4, num_slices=1, deterministic=False)
    return sac.make(config, SPEC, TinyPolicy(), feed)


def test_weights_by_hand():
    """p 0.1, 0.4 and beta 0.5: 1 and half; what is not valid does not set the scale."""
    probability = torch.tensor([0.1, 0.4, 0.001], dtype=torch.float64)
    found = importance(probability, 0.5, torch.tensor([True, True, False]))
    torch.testing.assert_close(found, torch.tensor([1.0, 0.5, 1.0]))
    torch.testing.assert_close(importance(probability, 0.0, torch.ones(3, dtype=torch.bool)), torch.ones(3))


def test_losses_are_weighted_and_errors_go_back():
    algorithm = made(priority=0.6, priority_beta=1.0, alpha=0.1)
    modules, _ = built(algorithm)
    drawn = {"drawn": torch.tensor([5, 6, 7, 8]), "probability": torch.tensor([0.1, 0.2, 0.2, 0.4]).double()}
    batch = step_batch(4) | drawn
    batch["terminated"][:] = True
    algorithm.label(batch, modules, Progress(0, 0, 100))
    loss = algorithm.critic_loss(modules, batch)
    with torch.no_grad():
        q = modules["critic"](batch, torch.tanh(batch["action"]))
        error = q - batch["reward"][:, 0]
        want = (0.5 * (error**2).sum(0) * torch.tensor([1.0, 0.5, 0.5, 0.25])).sum()
    assert loss.terms["critic_loss"][0].item() == pytest.approx(want.item(), rel=1e-5)
    steps, priorities = algorithm.priorities()["train"]
    assert steps.tolist() == [5, 6, 7, 8]
    np.testing.assert_allclose(priorities, error.abs().mean(0), rtol=1e-5)
    algorithm.label(step_batch(4), modules, Progress(1, 0, 100))
    assert algorithm.priorities() == {}


def test_the_table_hears_of_the_exponent():
    assert made(priority=0.6).feed.table.priority_exponent == 0.6
    assert made().feed.table.priority_exponent == 0.0
    with pytest.raises(ValueError, match="priority"):
        rlpd.Config(priority=0.6).feeds(num_envs=4, num_slices=1, deterministic=False)
