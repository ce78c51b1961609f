"""CrossQ: one joint forward pass, no target, what its policy goes through, masks, and a bandit it solves."""

import pytest
import torch
from learner_tiny import SPEC, TinyPolicy, built, step_batch, update

from rollbus_learner.algorithm import Progress
from rollbus_learner.algorithms import crossq

START = Progress(updates=0, env_steps=0, total_steps=100)


def made(**settings):
    torch.manual_seed(0)
    given = {"batch_size": 64, "steps_per_update": 4, "critic_hidden": [16]} | settings
    config = crossq.Config(**given)
    feed = config.feed(num_envs=4, num_slices=1, deterministic=False)
    return crossq.make(config, SPEC, TinyPolicy(), feed)


def test_what_it_is_made_of():
    algorithm = made()
    assert set(algorithm.roles()) == {"policy", "critic", "alpha"}
    critic, policy = algorithm.steps()
    assert (critic.betas, policy.betas) == ((0.5, 0.999), (0.5, 0.999))
    assert (critic.every, policy.every) == (1, 3)
    with pytest.raises(ValueError, match="policy_delay"):
        made(steps_per_update=2)


def test_target_by_hand():
    """Both halves of one batch of twice the size, normalised together."""
    algorithm = made(alpha=0.2, gamma=0.5)
    modules, _ = built(algorithm)
    batch = step_batch(4)
    batch["terminated"] = torch.tensor([True, False, False, False])
    algorithm.label(batch, modules, START)
    with torch.no_grad():
        action, log_prob = algorithm.sample(modules["policy"], batch, "next_")
        x = torch.cat([batch["obs/x"], batch["next_obs/x"]])
        a = torch.cat([torch.tanh(batch["action"]), action])
        both = torch.cat([x, a], -1).expand(2, -1, -1)
        critic = modules["critic"]

        def normal(y):
            return (y - y.mean(1, keepdim=True)) / (y.var(1, unbiased=False, keepdim=True) + 1e-3).sqrt()

        hidden = normal(torch.relu(critic.layers[0](normal(both))))
        q, following = critic.output(hidden)[..., 0].chunk(2, 1)
    discount = torch.tensor([0.0, 0.5, 0.5, 0.5])
    want = batch["reward"][:, 0] + discount * (following.amin(0) - 0.2 * log_prob)
    loss = algorithm.critic_loss(modules, batch)
    assert loss.metrics["q_target"][0].item() == pytest.approx(want.sum().item(), rel=1e-4)
    error = 0.5 * ((q - want) ** 2).sum()
    assert loss.terms["critic_loss"][0].item() == pytest.approx(error.item(), rel=1e-4)


def test_interrupted_transitions_are_no_part_of_the_statistics():
    algorithm = made()
    modules, _ = built(algorithm)
    batch = step_batch(8)
    batch["interrupted"][5:], batch["obs/x"][5:] = True, 1e6
    algorithm.label(batch, modules, START)
    first = {name: column[:5] for name, column in batch.items()}
    one, other = (algorithm.critic_loss(modules, b).terms["critic_loss"] for b in (batch, first))
    assert one[1] == other[1] == 5
    torch.testing.assert_close(one[0], other[0])


def test_the_policy_s_loss_does_not_move_the_averages():
    algorithm = made()
    modules, optimisers = built(algorithm)
    update(algorithm, modules, optimisers, step_batch(), START)
    before = [r.mean.clone() for r in modules["critic"].renorms]
    batch = step_batch()
    algorithm.label(batch, modules, START)
    algorithm.policy_loss(modules, batch)
    assert all(torch.equal(a, r.mean) for a, r in zip(before, modules["critic"].renorms))
    assert all(r.count == 1 for r in modules["critic"].renorms)


def test_a_bandit_is_solved():
    algorithm = made(alpha=0.01, learning_rate=1e-2, critic_learning_rate=1e-2, critic_hidden=[64])
    modules, optimisers = built(algorithm)
    for seed in range(500):
        update(algorithm, modules, optimisers, step_batch(128, seed), START)
    with torch.no_grad():
        action = torch.tanh(algorithm.policy.mean(step_batch(256, 999)["obs/x"]))
    assert (action.mean(0) - torch.tensor([0.3, -0.3])).abs().max() < 0.15
