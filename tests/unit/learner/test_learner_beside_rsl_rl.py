"""PPO with its adaptive rate, and random network distillation, beside rsl_rl.

What differs by choice: at a time-out theirs bootstraps from the value of the observation that was acted on,
ours from that of the final one (here they are the same numbers); theirs adapts the rate before each minibatch
by the exact KL, ours once per update; its novelty is the distance of two outputs, ours the mean square.
"""

import numpy as np
import pytest
import torch
from learner_beside import (
    case,
    descend,
    gaussian_policy,
    policy_layers,
    same_gradients,
    same_parameter,
    set_layers,
    value_layers,
)
from learner_tiny import SPEC

from rollbus_learner import estimators, masked
from rollbus_learner.algorithms import _novelty, ppo
from rollbus_learner.algorithms._adaptive_rate import adapted
from rollbus_policies import mlp


def test_advantages_with_time_outs():
    found = {
        name: column.numpy() for name, column in case("rsl_rl", "ppo").items() if hasattr(column, "numpy")
    }
    assert found["truncated"].any() and found["terminated"].any()
    advantage, target = estimators.gae(
        reward=found["reward"], discount=np.full_like(found["reward"], 0.9), value=found["value"],
        final_value=found["value"][:-1], terminated=found["terminated"], truncated=found["truncated"],
        valid=np.ones(found["reward"].shape, bool), lam=0.95,
    )  # fmt: skip
    np.testing.assert_allclose(advantage, found["advantage"], rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(target, found["target"], rtol=1e-5, atol=2e-6)


def test_losses_and_gradients():
    found = case("rsl_rl", "ppo")
    policy = gaussian_policy(found, "critic")
    config = ppo.Config(minibatches=1, value_clip=0.2, value_coef=0.5, entropy_coef=0.01)
    algorithm = ppo.make(config, SPEC, policy, config.feed(num_envs=4, num_slices=1, deterministic=False))
    advantage = found["advantage"].flatten()
    batch = {
        "obs/x": found["obs"][:-1].flatten(0, 1), "action": found["action"].flatten(0, 1),
        "log_prob": found["log_prob"].flatten(), "target": found["target"].flatten(),
        "old_value": found["value"][:-1].flatten(),
        "advantage": masked.normalise(advantage, torch.ones_like(advantage, dtype=torch.bool)),
    }  # fmt: skip
    loss = algorithm.loss({"policy": policy}, batch)
    assert 0 < float(loss.metrics["clip_fraction"][0]) < len(advantage)
    means = descend(loss)
    assert means["policy_loss"] == pytest.approx(found["policy_loss"].item(), rel=1e-4, abs=1e-6)
    assert means["value_loss"] == pytest.approx(0.5 * found["value_loss"].item(), rel=1e-5)
    assert means["entropy_loss"] == pytest.approx(-0.01 * found["entropy"].item(), rel=1e-5)
    same_gradients(policy_layers(policy), found["policy_gradient"], rtol=1e-3, atol=1e-5)
    same_gradients(value_layers(policy), found["critic_gradient"])
    same_parameter(policy.head.log_std, found["log_std_gradient"])


@pytest.mark.parametrize("which", ["falls", "rises", "stays"])
def test_the_adaptive_rate(which):
    found = case("rsl_rl", "ppo")
    policy = mlp.make(mlp.Config(hidden=[8], activation="relu", head="gaussian"), SPEC, critic=False)
    set_layers(policy_layers(policy), found["policy"])
    with torch.no_grad():
        mean = policy.output(policy.encoder(found["obs"][:-1]))
    now = torch.distributions.Normal(mean, found["log_std"].exp())
    before = torch.distributions.Normal(found["old_mean"], found["old_std"])
    kl = torch.distributions.kl_divergence(before, now).sum(-1).mean().item()
    rate = adapted(1e-3, kl, found["wanted_kl"][which].item())
    assert rate == pytest.approx(found["rate"][which].item(), rel=1e-6)
    assert (rate < 1e-3, rate > 1e-3, rate == 1e-3).index(True) == ["falls", "rises", "stays"].index(which)


def test_novelty(monkeypatch):
    found = case("rsl_rl", "rnd")
    monkeypatch.setattr(_novelty, "HIDDEN", (8, 8))
    monkeypatch.setattr(_novelty, "FEATURES", 4)
    novelty = _novelty.Novelty(SPEC, 1)
    # Without statistics it sees observations as they are.
    for network, name in ((novelty.target, "target"), (novelty.predictor, "predictor")):
        set_layers([*network[0].layers, network[1]], found[name])
    error = novelty({"obs/x": found["obs"]})
    error.mean().backward()
    assert error.mean().item() == pytest.approx(found["loss"].item(), rel=1e-5)
    torch.testing.assert_close((4 * error).sqrt(), found["reward"], rtol=1e-5, atol=1e-6)
    same_gradients([*novelty.predictor[0].layers, novelty.predictor[1]], found["gradient"])
