"""Off-policy losses next to the training steps of stable-baselines3, on the same weights and transitions."""

import gymnasium
import numpy as np
import pytest
import torch
from learner_tiny import DISCRETE, SPEC, built, step_batch

from rollbus_learner.algorithm import Progress
from rollbus_learner.algorithms import dqn, sac, td3
from rollbus_policies import mlp

START = Progress(updates=0, env_steps=0, total_steps=100)
B = 32


class Env(gymnasium.Env):
    """Only its spaces count."""

    def __init__(self, action_space):
        self.observation_space, self.action_space = (
            gymnasium.spaces.Box(-9, 9, (3,), np.float32),
            action_space,
        )

    def reset(self, **_):
        return np.zeros(3, np.float32), {}

    def step(self, action):
        return np.zeros(3, np.float32), 0.0, False, False, {}


BOX = gymnasium.spaces.Box(-1, 1, (2,), np.float32)


def trained(kind, space, batch, **settings):
    """(their model after one training step of size 0 on ``batch``, what it logged)."""
    sb3 = pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.logger import configure
    from stable_baselines3.common.type_aliases import ReplayBufferSamples

    torch.manual_seed(0)
    model = getattr(sb3, kind)(
        "MlpPolicy", Env(space), learning_rate=0.0, gamma=0.9, batch_size=B, buffer_size=10, tau=0.0,
        policy_kwargs={"net_arch": [16]}, device="cpu", **settings,
    )  # fmt: skip
    model.set_logger(configure(None, []))
    with torch.no_grad():
        for parameter in model.policy.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    action = batch["action"][:, None] if batch["action"].ndim == 1 else batch["env_action"]
    names = ReplayBufferSamples._fields
    columns = {
        "observations": batch["obs/x"], "actions": action, "next_observations": batch["next_obs/x"],
        "dones": batch["terminated"][:, None].float(), "rewards": batch["reward"],
    }  # fmt: skip
    drawn = ReplayBufferSamples(*[columns.get(name) for name in names])
    model.replay_buffer.sample = lambda *_, **__: drawn
    model.train(1, B)
    return model, model.logger.name_to_value


def transitions(spec):
    batch = step_batch(B, spec=spec)
    batch["terminated"] = torch.arange(B) % 3 == 0
    return batch


def copy_linear(ours, theirs):
    with torch.no_grad():
        ours.weight.copy_(theirs.weight)
        ours.bias.copy_(theirs.bias)


def copy_ensemble(ours, heads):
    """Our joint critics take the weights of their separate ones."""
    with torch.no_grad():
        for index, head in enumerate(heads):
            layers = [layer for layer in head if isinstance(layer, torch.nn.Linear)]
            for own, layer in zip([*ours.layers, ours.output], layers):
                own.weight[index].copy_(layer.weight.T)
                own.bias[index, 0].copy_(layer.bias)


def made(module, spec, head, **settings):
    config = module.Config(batch_size=B, gamma=0.9, **settings)
    feed = config.feed(num_envs=1, num_slices=1, deterministic=False)
    policy = mlp.make(mlp.Config(hidden=[16], head=head, activation="relu"), spec, critic=False)
    algorithm = module.make(config, spec, policy, feed)
    return algorithm, built(algorithm)[0]


def mean(term):
    return term[0].item() / float(term[1])


def test_td3():
    batch = transitions(SPEC)
    batch["action"] = batch["env_action"]
    model, theirs = trained("TD3", BOX, batch, policy_delay=1, target_policy_noise=0.0)
    algorithm, modules = made(td3, SPEC, "deterministic", critic_hidden=[16], target_noise=0.0)
    for own, actor in (("policy", model.actor), ("target_policy", model.actor_target)):
        copy_linear(modules[own].encoder.layers[0], actor.mu[0])
        copy_linear(modules[own].output, actor.mu[2])
    copy_ensemble(modules["critic"], model.critic.q_networks)
    copy_ensemble(modules["target"], model.critic_target.q_networks)
    algorithm.label(batch, modules, START)
    critic = algorithm.critic_loss(modules, batch).terms["critic_loss"]
    # Theirs is the squared error, ours half of it.
    assert 2 * mean(critic) == pytest.approx(theirs["train/critic_loss"], rel=1e-4)
    policy = algorithm.policy_loss(modules, batch).terms["policy_loss"]
    assert mean(policy) == pytest.approx(theirs["train/actor_loss"], rel=1e-4)


@pytest.mark.parametrize("alpha", [0.2, "auto"])
def test_sac(alpha, monkeypatch):
    """Their noise is replaced by ours: first for the policy's loss, then for the target."""
    batch = transitions(SPEC)
    algorithm, modules = made(sac, SPEC, "tanh_gaussian", critic_hidden=[16], alpha=alpha, initial_alpha=0.3)
    algorithm.label(batch, modules, START)
    noise = iter([batch["noise"], batch["next_noise"]])
    normal = torch.distributions.Normal

    def rsample(self, shape=()):
        return self.loc + self.scale * next(noise)

    coefficient = "auto_0.3" if alpha == "auto" else alpha
    with monkeypatch.context() as patch:
        patch.setattr(normal, "rsample", rsample)
        model, theirs = trained("SAC", BOX, batch, ent_coef=coefficient)
    policy = modules["policy"]
    copy_linear(policy.encoder.layers[0], model.actor.latent_pi[0])
    with torch.no_grad():
        policy.output.weight.copy_(torch.cat([model.actor.mu.weight, model.actor.log_std.weight]))
        policy.output.bias.copy_(torch.cat([model.actor.mu.bias, model.actor.log_std.bias]))
    copy_ensemble(modules["critic"], model.critic.q_networks)
    copy_ensemble(modules["target"], model.critic_target.q_networks)
    critic = algorithm.critic_loss(modules, batch).terms["critic_loss"]
    assert mean(critic) == pytest.approx(theirs["train/critic_loss"], rel=1e-3)
    loss = algorithm.policy_loss(modules, batch).terms
    assert mean(loss["policy_loss"]) == pytest.approx(theirs["train/actor_loss"], rel=1e-3)
    if alpha == "auto":
        assert mean(loss["alpha_loss"]) == pytest.approx(theirs["train/ent_coef_loss"], rel=1e-3)


def test_dqn():
    """Theirs is not double."""
    batch = transitions(DISCRETE)
    model, theirs = trained("DQN", gymnasium.spaces.Discrete(3), batch)
    algorithm, modules = made(dqn, DISCRETE, "q_values", double=False)
    for own, network in (("policy", model.q_net), ("target", model.q_net_target)):
        copy_linear(modules[own].encoder.layers[0], network.q_net[0])
        copy_linear(modules[own].output, network.q_net[2])
    algorithm.label(batch, modules, START)
    assert mean(algorithm.loss(modules, batch).terms["critic_loss"]) == pytest.approx(
        theirs["train/loss"], rel=1e-4
    )
