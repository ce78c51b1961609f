"""SAC-Flow and DSRL: path densities by hand, what is frozen, what is stored, what is refused."""

import math

import numpy as np
import pytest
import torch
from learner_tiny import SPEC, built, step_batch, update

from rollbus_core import rng
from rollbus_learner.algorithm import Progress
from rollbus_learner.algorithms import dsrl, sac_flow
from rollbus_policies import diffusion, flow, mlp
from rollbus_policies.base import Ask
from rollbus_wire.errors import ConfigError

START = Progress(updates=0, env_steps=0, total_steps=100)
SMALL = {"width": 16, "num_heads": 2, "layers": 1, "expert_layers": 1}
FLOW = SMALL | {"chunk": 1, "steps": 2, "sampler": "flow_noise", "bound": "tanh"}


def made(module, policy, **settings):
    config = module.Config(**({"batch_size": 32, "steps_per_update": 1, "critic_hidden": [16]} | settings))
    feed = config.feed(num_envs=4, num_slices=1, deterministic=False)
    return module.make(config, SPEC, policy, feed)


def flow_policy(**settings):
    torch.manual_seed(0)
    return flow.make(flow.Config(**(FLOW | settings)), SPEC, critic=False)


def test_the_density_of_a_path_by_hand():
    """log N(x0) + two Gaussian steps - log(1 - y^2), element by element."""
    policy, batch = flow_policy(), step_batch(5)
    noise = torch.randn(5, policy.spec.noise)
    with torch.no_grad():
        found = policy(batch | {"noise": noise}, ("sample",))
        context = policy.context({"x": batch["obs/x"]}, policy.normaliser)
        parts = noise.view(5, 3, 1, 2)
        x = parts[:, 0]
        log_prob = torch.distributions.Normal(0.0, 1.0).log_prob(x).sum((1, 2))
        for step, time in enumerate((1.0, 0.5)):
            velocity, std = policy.velocity(x, torch.full((5,), time), context)
            mean, x = x - 0.5 * velocity, x - 0.5 * velocity + std * parts[:, step + 1]
            log_prob += torch.distributions.Normal(mean, std).log_prob(x).sum((1, 2))
        log_prob -= torch.log(1 - torch.tanh(x) ** 2).sum((1, 2))
    torch.testing.assert_close(found["sample_log_prob"], log_prob, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found["squashed"], torch.tanh(x)[:, 0], rtol=1e-4, atol=1e-5)
    assert policy.config.min_std <= std.min() and std.max() <= policy.config.max_std


def test_stored_actions_and_executed_ones_agree_with_tanh():
    policy = flow_policy()
    shown = np.array([[0.5, -0.9], [1.0, -1.0]], np.float32)
    stored = policy.from_env_action(shown)
    assert np.isfinite(stored).all()
    np.testing.assert_allclose(policy.env_action(stored), np.clip(shown, -0.999, 0.999), atol=1e-5)
    unit = policy.squash(torch.from_numpy(stored))
    np.testing.assert_allclose(unit.numpy(), np.clip(shown, -0.999, 0.999), atol=1e-5)


def test_a_temperature_needs_deviations_that_can_be_learned():
    with pytest.raises(ConfigError, match="flow_noise"):
        made(sac_flow, flow_policy(sampler="flow_cps"))
    assert not made(sac_flow, flow_policy(sampler="flow_cps"), alpha=0.1).auto_alpha
    with pytest.raises(ConfigError, match="samples in steps"):
        made(sac_flow, mlp.make(mlp.Config(head="tanh_gaussian"), SPEC, critic=False))
    assert made(sac_flow, flow_policy(), target_entropy=-3.0).target_entropy == -3.0


def steered(module=flow, **settings):
    torch.manual_seed(0)
    given = SMALL | {"chunk": 3, "steps": 2, "steer": True, "steer_hidden": [16]} | settings
    config = module.Config(**given)
    return module.make(config, SPEC, critic=False)


def acted(policy, mode, num=64):
    obs = {"x": np.random.default_rng(0).normal(size=(num, 3)).astype(np.float32)}
    seeds = rng.decision_seeds(rng.stream(0, "t"), np.arange(num), np.zeros(num, int))
    return obs, policy.act(obs, None, Ask(mode), seeds), seeds


@pytest.mark.parametrize("module", [flow, diffusion])
def test_the_chain_begins_with_the_chosen_noise_and_adds_none(module):
    policy = steered(module)
    for mode in ("sample", "mode", "random"):
        obs, act, seeds = acted(policy, mode)
        first = act.action[:, :6].reshape(-1, 3, 2)
        assert (first == first[:, :1]).all() and np.abs(first).max() <= policy.config.steer_bound
        unsteered = module.make(policy.config.model_copy(update={"steer": False}), SPEC, critic=False)
        own = {k: v for k, v in policy.state_dict().items() if not k.startswith("steer.")}
        unsteered.load_state_dict(own)
        again = unsteered.act(obs, None, Ask("mode", noise=first), seeds)
        np.testing.assert_allclose(again.env_action, act.env_action, atol=1e-6)
    spread = {mode: acted(policy, mode)[1].action[:, :2].std() for mode in ("mode", "sample")}
    assert spread["mode"] < 0.1 < spread["sample"]


@pytest.mark.parametrize("module", [flow, diffusion])
def test_dsrl_changes_no_byte_of_the_base(module):
    policy = steered(module, normalise_obs=True)
    algorithm = made(dsrl, policy)
    modules, optimisers = built(algorithm)
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    batch = step_batch(32)
    obs = {"x": batch["obs/x"].numpy()}
    seeds = rng.decision_seeds(rng.stream(0, "t"), np.arange(32), np.zeros(32, int))
    batch["action"] = torch.from_numpy(policy.act(obs, None, Ask("sample"), seeds).action)
    for _ in range(5):
        update(algorithm, modules, optimisers, batch, START)
    changed = {name for name, value in policy.state_dict().items() if not torch.equal(before[name], value)}
    assert changed and all(name.startswith("steer.") for name in changed)
    taken = algorithm.taken(modules, batch)
    torch.testing.assert_close(taken, batch["action"][:, :2] / policy.config.steer_bound)


def test_dsrl_by_hand():
    """Density of tanh(u) over the noise, and the entropy that is aimed at: minus its elements."""
    policy = steered()
    algorithm = made(dsrl, policy)
    assert algorithm.target_entropy == -2.0 and algorithm.num_noise == 2
    batch = step_batch(4)
    noise = torch.randn(4, 2)
    chosen, log_prob = algorithm.sample(policy, batch | {"noise": noise}, "")
    u = torch.atanh(chosen)
    want = -0.5 * noise**2 - 0.5 * math.log(2 * math.pi) - torch.log(1 - chosen**2)
    # The initial deviation is 1 but for the last layer's small weights.
    torch.testing.assert_close(log_prob, want.sum(-1), atol=0.15, rtol=0.05)
    torch.testing.assert_close(u, noise, atol=0.3, rtol=0.2)


def test_what_is_not_steered_is_refused():
    with pytest.raises(ConfigError, match="steer: true"):
        made(dsrl, flow_policy())
