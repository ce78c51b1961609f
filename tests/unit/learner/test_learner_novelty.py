"""Random network distillation: what was seen often is no longer new, and the reward of being new."""

import numpy as np
import pytest
import torch
from learner_tiny import SPEC, TinyPolicy, built, chunk_batch

from rollbus_learner.algorithm import Progress
from rollbus_learner.algorithms import _novelty, ppo
from rollbus_learner.loop import update

NOW = Progress(updates=0, env_steps=0, total_steps=100)


def made(**settings):
    torch.manual_seed(0)
    config = ppo.Config(num_steps=8, minibatches=4, **settings)
    feed = config.feed(num_envs=4, num_slices=1, deterministic=False)
    return ppo.make(config, SPEC, TinyPolicy(), feed)


def test_what_was_learned_is_no_longer_new():
    algorithm = made(novelty_coef=1.0)
    modules, optimisers = built(algorithm)
    generator = torch.Generator().manual_seed(0)
    novelty, far = modules["novelty"], {"obs/x": torch.full((1, 3), 4.0)}
    before = novelty(chunk_batch(algorithm.policy)).mean()
    for _ in range(30):
        update(algorithm, modules, optimisers, chunk_batch(algorithm.policy), NOW, generator)
    seen = novelty(chunk_batch(algorithm.policy)).mean()
    assert seen < 0.5 * before and novelty(far).mean() > 3 * seen


def test_the_reward_is_of_where_a_decision_led_to():
    """The next observation; where the episode ended, its final one."""
    novelty = _novelty.Novelty(SPEC, 1)
    batch = chunk_batch(TinyPolicy())
    found = _novelty.reached(novelty, batch)
    with torch.no_grad():
        following, finals = novelty(batch)[1:], novelty(batch, "final_obs/")
    assert found[2, 0] == pytest.approx(float(finals[0])) and found[5, 2] == pytest.approx(float(finals[3]))
    others = batch["final_slot"] < 0
    assert torch.allclose(found[others], following[others])


def test_novelty_is_added_to_the_reward_in_deviations_of_its_return():
    algorithm = made(novelty_coef=0.5, gamma=0.9)
    modules, _ = built(algorithm)
    batch = chunk_batch(algorithm.policy)
    plain, _ = made().rewards(batch, {})
    reward, _ = algorithm.rewards(batch, modules)
    new = _novelty.reached(modules["novelty"], batch).numpy()
    np.testing.assert_allclose(reward - plain, 0.5 * new / algorithm.novelty_scaler.scale, rtol=1e-4)


def test_only_the_predictor_learns_and_both_are_saved():
    algorithm = made(novelty_coef=1.0)
    modules, optimisers = built(algorithm)
    before = {n: p.clone() for n, p in modules["novelty"].target.named_parameters()}
    update(algorithm, modules, optimisers, chunk_batch(algorithm.policy), NOW, torch.Generator())
    assert all(torch.equal(p, before[n]) for n, p in modules["novelty"].target.named_parameters())
    assert algorithm.roles()["novelty"].saved
    again = made(novelty_coef=1.0)
    again.load_state(algorithm.state())
    assert again.state() == algorithm.state()
    assert "novelty" not in made().roles()
