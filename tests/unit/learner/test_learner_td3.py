"""TD3 and TD3+BC: targets by hand, delays, what is trained by what, and a side-by-side with the formula."""

import pytest
import torch
from learner_tiny import SPEC, TinyCritic, built, step_batch, update

from rollbus_learner.algorithm import Progress
from rollbus_learner.algorithms import td3, td3_bc
from rollbus_learner.algorithms._actor_critic import values
from rollbus_policies import mlp
from rollbus_wire.errors import ConfigError
from rollbus_wire.spec import ActionSpec, EnvSpec

START = Progress(updates=0, env_steps=0, total_steps=100)


def made(module, kind, **settings):
    torch.manual_seed(0)

    class Small(kind):
        def make_critic(self):
            return TinyCritic(2)

    config = module.Config(**({"batch_size": 64, "steps_per_update": 4} | settings))
    feed = config.feed(num_envs=4, num_slices=1, deterministic=False)
    policy = mlp.make(mlp.Config(hidden=[16], head="deterministic"), SPEC, critic=False)
    return Small(config, SPEC, policy, feed)


def in_bounds(batch):
    """Stored actions of this head are what was executed."""
    return batch | {"action": batch["action"].clamp(-1, 1)}


def test_target_by_hand():
    """Row 0 terminated; row 1 made two steps; the action is smoothed and clipped, the least Q counts."""
    algorithm = made(td3, td3.TD3, gamma=0.5, target_noise=10.0, target_noise_clip=0.5)
    modules, _ = built(algorithm)
    batch = in_bounds(step_batch(3))
    batch["reward"] = torch.tensor([[1.0, 4.0]] * 3)
    batch["num_steps"] = torch.tensor([2, 2, 1], dtype=torch.int32)
    batch["terminated"] = torch.tensor([True, False, False])
    algorithm.label(batch, modules, START)
    assert batch["next_noise"].abs().max() == 0.5
    with torch.no_grad():
        policy = modules["target_policy"]
        hidden = torch.tanh(policy.encoder.layers[0](batch["next_obs/x"]))
        action = (torch.tanh(policy.output(hidden)) + batch["next_noise"]).clamp(-1, 1)
        least = modules["target"]({"next_obs/x": batch["next_obs/x"]}, action, "next_obs/").amin(0)
    want = torch.tensor([3.0, 3.0, 1.0]) + torch.tensor([0.0, 0.25, 0.5]) * least
    loss = algorithm.critic_loss(modules, batch)
    assert loss.metrics["q_target"][0].item() == pytest.approx(want.sum().item(), rel=1e-5)


def test_the_policy_climbs_the_first_critic_only():
    algorithm = made(td3, td3.TD3)
    modules, _ = built(algorithm)
    batch = in_bounds(step_batch(8))
    algorithm.label(batch, modules, START)
    action = modules["policy"](batch, ("deterministic",))["deterministic"]
    first = values(modules, "critic", batch, action, "obs/")[0]
    assert algorithm.policy_loss(modules, batch).terms["policy_loss"][0].item() == pytest.approx(
        -first.sum().item(), rel=1e-5
    )


def test_targets_follow_with_the_policy():
    algorithm = made(td3, td3.TD3, tau=0.25)
    modules, _ = built(algorithm)
    with torch.no_grad():
        for p in modules["policy"].parameters():
            p.fill_(1.0)
        for p in modules["target_policy"].parameters():
            p.zero_()
    algorithm.after_step(modules, "critic", {})
    assert all((p == 0).all() for p in modules["target_policy"].parameters())
    algorithm.after_step(modules, "policy", {})
    assert all((p == 0.25).all() for p in modules["target_policy"].parameters())
    assert [step.every for step in algorithm.steps()] == [1, 2]


def test_a_delay_longer_than_an_update_is_refused():
    with pytest.raises(ValueError, match="policy_delay 2"):
        td3.Config(steps_per_update=1).feed(num_envs=1, num_slices=1, deterministic=False)
    with pytest.raises(ValueError, match="policy_delay 2"):
        td3_bc.Config(steps_per_update=1).feed(num_envs=1, num_slices=1, deterministic=False)


def test_a_bandit_is_solved():
    algorithm = made(td3, td3.TD3, learning_rate=1e-2, critic_learning_rate=3e-2)
    modules, optimisers = built(algorithm)
    for seed in range(300):
        update(algorithm, modules, optimisers, in_bounds(step_batch(128, seed)) | {}, START)
    with torch.no_grad():
        action = algorithm.policy(step_batch(256, 999), ("deterministic",))["deterministic"]
    assert ((action - torch.tensor([0.3, -0.3])).abs().mean(0) < 0.3).all()


def test_exploration_is_one_of_the_tensors_that_actors_get():
    algorithm = made(td3, td3.TD3, exploration_noise=0.3)
    published = algorithm.publish({"policy": algorithm.policy})
    assert published["head.exploration"].item() == pytest.approx(0.3)
    assert made(td3_bc, td3_bc.TD3BC).policy.head.exploration == 0


def test_td3_bc_by_hand():
    """``-alpha Q / mean|Q| + |pi - a|^2``; with alpha 0 it is cloning."""
    algorithm = made(td3_bc, td3_bc.TD3BC, alpha=2.0)
    modules, _ = built(algorithm)
    batch = in_bounds(step_batch(8))
    algorithm.label(batch, modules, START)
    with torch.no_grad():
        action = modules["policy"](batch, ("deterministic",))["deterministic"]
        q = values(modules, "critic", batch, action, "obs/")[0]
        want = ((action - batch["action"]) ** 2).mean(1) - 2.0 * q / q.abs().mean()
    numerator, count = algorithm.policy_loss(modules, batch).terms["policy_loss"]
    assert count == 8 and numerator.item() == pytest.approx(want.sum().item(), rel=1e-4)
    cloned = made(td3_bc, td3_bc.TD3BC, alpha=0.0, learning_rate=1e-2)
    modules, optimisers = built(cloned)
    for _ in range(200):
        metrics = update(cloned, modules, optimisers, batch, START)
    assert metrics["cloning_loss"] < 0.02


def test_what_has_no_deterministic_action_is_refused():
    config = td3.Config()
    feed = config.feed(num_envs=4, num_slices=1, deterministic=False)
    gaussian = mlp.make(mlp.Config(), SPEC, critic=False)
    with pytest.raises(Exception, match="deterministic"):
        td3.make(config, SPEC, gaussian, feed)
    discrete = EnvSpec("d", SPEC.observation, ActionSpec("discrete", num=[3]))
    with pytest.raises(ConfigError, match="continuous"):
        td3.make(config, discrete, gaussian, feed)
