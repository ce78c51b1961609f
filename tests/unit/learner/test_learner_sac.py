"""SAC: targets by hand, masks, who is trained by what, the moving average, and a bandit it solves."""

import math

import pytest
import torch
from learner_tiny import SPEC, TinyCritic, TinyPolicy, built, step_batch, update
from pydantic import ValidationError

from rollbus_learner.algorithm import Progress
from rollbus_learner.algorithms.sac import SAC, Config, log_alpha
from rollbus_learner.averaging import follow
from rollbus_wire.errors import ConfigError
from rollbus_wire.spec import ActionSpec, EnvSpec

START = Progress(updates=0, env_steps=0, total_steps=100)


class TinySAC(SAC):
    """With a critic that needs no policy library."""

    def make_critic(self):
        return TinyCritic(self.config.num_critics)


def sac(**settings):
    torch.manual_seed(0)
    config = Config(**({"batch_size": 64, "steps_per_update": 1} | settings))
    feed = config.feed(num_envs=4, num_slices=1, deterministic=False)
    return TinySAC(config, SPEC, TinyPolicy(), feed)


def test_feed():
    config = Config(steps_per_update=50, updates_per_step=0.5, batch_size=128, start_steps=500)
    feed = config.feed(num_envs=8, num_slices=2, deterministic=False)
    assert (feed.unit, feed.num_batches, feed.batch_size) == ("step", 25, 128)
    table = feed.table
    assert (table.sampler, table.min_steps, table.random_steps, table.steps_per_update) == (
        "replay",
        500,
        500,
        50,
    )
    assert "25 gradient steps on 128 transitions" in feed.summary


@pytest.mark.parametrize("settings", [dict(updates_per_step=0.001), dict(start_steps=10, max_steps=5)])
def test_feeds_that_cannot_learn_are_refused(settings):
    with pytest.raises(ValueError, match="algorithm"):
        Config(**settings).feed(num_envs=8, num_slices=2, deterministic=False)


def test_unknown_key_is_refused():
    with pytest.raises(ValidationError):
        Config(alhpa=0.1)


def expected_target(algorithm, modules, batch, row, discount, reward):
    """y of one transition, straight from the formula."""
    policy, target = modules["policy"], modules["target"]
    obs = batch["next_obs/x"][row : row + 1]
    with torch.no_grad():
        u = policy.mean(obs) + policy.log_std.exp() * batch["next_noise"][row]
        normal = torch.distributions.Normal(policy.mean(obs), policy.log_std.exp())
        log_prob = normal.log_prob(u).sum() - torch.log1p(-(torch.tanh(u) ** 2) + 1e-6).sum()
        heads = [head(torch.cat([obs, torch.tanh(u)], -1)).item() for head in target.heads]
    return reward + discount * (min(heads) - 0.2 * log_prob.item())


def test_target_by_hand():
    """Action chunks: row 0 terminated after 2 steps, row 1 truncated after 2, row 2 goes on after 3."""
    algorithm = sac(alpha=0.2, gamma=0.5)
    modules, _ = built(algorithm)
    batch = step_batch(3)
    batch["reward"] = torch.tensor([[1.0, 4.0, 777.0]] * 3)
    batch["num_steps"] = torch.tensor([2, 2, 3], dtype=torch.int32)
    batch["terminated"] = torch.tensor([True, False, False])
    batch["truncated"] = torch.tensor([True, True, False])
    algorithm.label(batch, modules, START)
    want = [
        3.0,
        expected_target(algorithm, modules, batch, 1, 0.25, 3.0),
        expected_target(algorithm, modules, batch, 2, 0.125, 3.0 + 0.25 * 777.0),
    ]
    loss = algorithm.critic_loss(modules, batch)
    numerator, count = loss.metrics["q_target"]
    assert numerator.item() == pytest.approx(sum(want), rel=1e-5) and count == 3
    x = torch.cat([batch["obs/x"], torch.tanh(batch["action"])], -1)
    q = torch.cat([head(x) for head in modules["critic"].heads], 1)
    error = 0.5 * ((q - torch.tensor(want)[:, None]) ** 2).sum()
    assert loss.terms["critic_loss"][0].item() == pytest.approx(error.item(), rel=1e-5)


def test_interrupted_transitions_do_not_count():
    algorithm = sac()
    modules, _ = built(algorithm)
    full, part = step_batch(8), step_batch(8)
    part["interrupted"][5:], part["reward"][5:] = True, math.nan
    part["obs/x"][5:] = 1e6
    for batch in (full, part):
        torch.manual_seed(3)
        algorithm.label(batch, modules, START)
    first = {k: v[:5] for k, v in full.items()}
    for loss in (algorithm.critic_loss, algorithm.policy_loss):
        for name, (numerator, count) in loss(modules, part).terms.items():
            assert count == 5 and numerator.isfinite()
            torch.testing.assert_close(numerator, loss(modules, first).terms[name][0])


def test_each_step_trains_its_own_roles():
    algorithm = sac()
    modules, optimisers = built(algorithm)
    batch = step_batch()
    algorithm.label(batch, modules, START)
    for step in algorithm.steps():
        before = {name: [p.clone() for p in m.parameters()] for name, m in modules.items()}
        optimiser = optimisers[step.name]
        optimiser.zero()
        optimiser.backward(sum(a / b for a, b in step.loss(modules, batch).terms.values()))
        optimiser.apply()
        moved = {
            name
            for name, m in modules.items()
            if any(not torch.equal(a, b) for a, b in zip(before[name], m.parameters()))
        }
        assert moved == set(step.trains), step.name


def test_alpha_rises_when_entropy_is_below_its_target():
    for target, sign in ((50.0, 1), (-50.0, -1)):
        algorithm = sac(target_entropy=target)
        modules, optimisers = built(algorithm)
        update(algorithm, modules, optimisers, step_batch(), START)
        assert sign * log_alpha(modules).item() > 0
    assert sac().target_entropy == -2.0


def test_a_fixed_alpha_is_not_trained():
    algorithm = sac(alpha=0.25)
    modules, optimisers = built(algorithm)
    metrics = update(algorithm, modules, optimisers, step_batch(), START)
    assert metrics["alpha"] == pytest.approx(0.25) and "alpha_loss" not in metrics
    assert not algorithm.roles()["alpha"].trainable and algorithm.steps()[1].trains == ("policy",)


def test_target_follows_the_critic_only_after_its_step():
    algorithm = sac(tau=0.25)
    modules, _ = built(algorithm)
    critic, target = modules["critic"], modules["target"]
    with torch.no_grad():
        for p in critic.parameters():
            p.fill_(1.0)
        for p in target.parameters():
            p.zero_()
    algorithm.after_step(modules, "policy", {})
    assert all((p == 0).all() for p in target.parameters())
    assert algorithm.after_step(modules, "critic", {}) is False
    assert all((p == 0.25).all() for p in target.parameters())
    follow(target, critic, 1.0)
    assert all((p == 1).all() for p in target.parameters())
    assert not any(p.requires_grad for p in target.parameters())


def test_a_bandit_is_solved():
    """Reward is highest at (0.3, -0.3); the mean of the policy goes there."""
    algorithm = sac(alpha=0.01, learning_rate=1e-2, critic_learning_rate=3e-2)
    modules, optimisers = built(algorithm)
    for seed in range(400):
        update(algorithm, modules, optimisers, step_batch(128, seed), START)
    with torch.no_grad():
        action = torch.tanh(algorithm.policy.mean(step_batch(256, 999)["obs/x"]))
    assert (action.mean(0) - torch.tensor([0.3, -0.3])).abs().max() < 0.1


def test_what_cannot_be_sampled_fails_at_the_start():
    feed = Config().feed(num_envs=4, num_slices=1, deterministic=False)
    with pytest.raises(ConfigError, match="recurrent"):
        SAC(Config(), SPEC, TinyPolicy(state_size=1), feed)
    discrete = EnvSpec("d", SPEC.observation, ActionSpec("discrete", num=[3]))
    with pytest.raises(ConfigError, match="continuous"):
        SAC(Config(), discrete, TinyPolicy(), feed)


def test_roles_are_made_once():
    algorithm = sac()
    assert algorithm.roles()["target"].module is algorithm.roles()["target"].module


def test_published_is_the_policy_alone():
    algorithm = sac()
    assert set(algorithm.publish({"policy": algorithm.policy})) == {"mean.weight", "mean.bias", "log_std"}
