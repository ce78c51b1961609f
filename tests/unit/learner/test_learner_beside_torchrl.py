"""Estimators, networks and losses beside torchrl: the same numbers on its weights, data and noise.

What differs by choice: its squared errors count fully, those of our critics half; it sums over the proposals
of CQL where we take their mean, which adds a constant to the loss and nothing to the gradient.
"""

import math

import numpy as np
import pytest
import torch
from learner_beside import (
    GAMMA,
    START,
    case,
    descend,
    gaussian_policy,
    made,
    mlp_policy,
    policy_layers,
    propose,
    same_gradients,
    same_head_gradients,
    same_parameter,
    set_heads,
    set_layers,
    transitions,
    value_layers,
)
from learner_tiny import DISCRETE, SPEC
from test_learner_stretches import Decision, Table

from rollbus_accel.kernels.discounted_return import discounted_return
from rollbus_learner import estimators
from rollbus_learner.algorithms import cql, dqn, iql, ppo, td3_bc
from rollbus_learner.algorithms._replay import label_returns
from rollbus_learner.gather import SlabReader
from rollbus_policies._batch_renorm import BatchRenorm
from rollbus_policies._value_heads import TwoHot

B, NUM = 12, 1


# --- estimators --------------------------------------------------------------------------------------


def columns(found):
    """Arguments of `gae` and `vtrace`: every decision counts and took one step."""
    reward = found["reward"].numpy()
    names = ("value", "final_value", "terminated", "truncated")
    return {name: found[name].numpy() for name in names} | {
        "reward": reward,
        "discount": np.full_like(reward, GAMMA),
        "valid": np.ones(reward.shape, bool),
    }


def test_gae_with_terminations_and_truncations():
    found = case("torchrl", "gae")
    assert (found["truncated"] & ~found["terminated"]).any() and found["terminated"].any()
    advantage, target = estimators.gae(**columns(found), lam=0.95)
    np.testing.assert_allclose(advantage, found["advantage"], atol=2e-6)
    np.testing.assert_allclose(target, found["target"], atol=2e-6)


def test_vtrace_with_both_clips():
    found = case("torchrl", "vtrace")
    ratio = found["log_ratio"].exp()
    assert (ratio > 1.3).any() and (ratio < 0.8).any()
    advantage, target = estimators.vtrace(
        **columns(found), log_ratio=found["log_ratio"].numpy(), lam=1.0, rho_clip=1.3, c_clip=0.8
    )
    np.testing.assert_allclose(target, found["target"], atol=2e-6)
    np.testing.assert_allclose(advantage, found["advantage"], atol=2e-6)


def test_discounted_returns():
    found = case("torchrl", "returns")
    done = found["terminated"] | found["truncated"]
    ours = discounted_return(found["reward"], torch.ones_like(done), GAMMA, done)
    torch.testing.assert_close(ours, found["returns"], rtol=1e-5, atol=1e-6)


def test_n_step_returns_from_slabs(tmp_path):
    """One row in chunks of 4 and 5; the episode is cut behind the fifth decision."""
    found = case("torchrl", "n_step")
    row = [
        Decision(int(t > 4), t, float(t), t + 1.0, [reward], "truncated" if t in (4, 8) else "")
        for t, reward in enumerate(found["reward"].tolist())
    ]
    table = Table(tmp_path, [row], [[4], [5]], width=1)
    batch = SlabReader(table.folder, 3).read(table.every_step(2))
    label_returns(batch, GAMMA)
    assert batch["valid"].all() and batch["step"].tolist() == list(range(9))
    torch.testing.assert_close(batch["decision_reward"], found["returns"])
    torch.testing.assert_close(batch["discount"], found["discount"])
    torch.testing.assert_close(batch["next_obs/x"][:, 0], found["reached"])


def test_two_hot_targets():
    found = case("torchrl", "two_hot")
    net = TwoHot(torch.linspace(-1.0, 1.0, 7))
    torch.testing.assert_close(net.atoms, found["bins"])
    torch.testing.assert_close(net.two_hot(found["value"]), found["two_hot"], rtol=0, atol=1e-6)


@pytest.mark.parametrize(("name", "batches"), [("renorm_warming", 0), ("renorm", 5)])
def test_batch_renormalisation(name, batches):
    """By the batch and by the averages. Theirs average the variance with divisor n - 1, ours with n."""
    found = case("torchrl", name)
    ours = BatchRenorm(1, 4, warm_up=5, max_r=1.5, max_d=0.5)
    with torch.no_grad():
        for part in ("mean", "var", "scale", "shift"):
            getattr(ours, part).copy_(found[part].expand_as(getattr(ours, part)))
        ours.count.fill_(batches)
    x = found["x"].requires_grad_()
    out = ours(x[None], running=False)[0]
    (out * found["cost"]).sum().backward()
    torch.testing.assert_close(out, found["out"], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(x.grad, found["x_gradient"], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(ours.scale.grad.flatten(), found["scale_gradient"], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours.shift.grad.flatten(), found["shift_gradient"], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours.mean.flatten(), found["mean_after"])
    kept = 0.99 * found["var"]
    torch.testing.assert_close(kept + (ours.var.flatten() - kept) * 10 / 9, found["var_after"])
    with torch.no_grad():
        ours.var.copy_(found["var_after"].expand_as(ours.var))
        torch.testing.assert_close(ours(x[None], running=True)[0], found["running"], rtol=1e-5, atol=1e-6)


# --- losses ------------------------------------------------------------------------------------------


def test_ppo():
    found = case("torchrl", "ppo")
    policy = gaussian_policy(found, "value")
    config = ppo.Config(num_steps=B, minibatches=1, value_clip=0.3, value_coef=0.5, entropy_coef=0.01)
    algorithm = ppo.make(config, SPEC, policy, config.feed(num_envs=1, num_slices=1, deterministic=False))
    names = ("action", "log_prob", "advantage", "target", "old_value")
    loss = algorithm.loss({"policy": policy}, {"obs/x": found["obs"]} | {name: found[name] for name in names})
    outside, count = loss.metrics["clip_fraction"]
    assert 0 < float(outside) / count == pytest.approx(found["clip_fraction"].item())
    means = descend(loss)
    for name in ("policy_loss", "value_loss", "entropy_loss"):
        assert means[name] == pytest.approx(found[name].item(), rel=1e-5, abs=1e-6), name
    same_gradients(policy_layers(policy), found["policy_gradient"])
    same_gradients(value_layers(policy), found["value_gradient"])
    same_parameter(policy.head.log_std, found["log_std_gradient"])


def test_double_dqn():
    """Its limit of Huber's loss is 1, too."""
    found = case("torchrl", "dqn")
    config = dqn.Config(batch_size=B, gamma=GAMMA)
    policy = mlp_policy("q_values", DISCRETE)
    algorithm = dqn.make(config, DISCRETE, policy, config.feed(num_envs=1, num_slices=1, deterministic=False))
    modules = {name: role.module for name, role in algorithm.roles().items()}
    set_layers(policy_layers(policy), found["policy"])
    set_layers(policy_layers(modules["target"]), found["target"])
    batch = transitions(found, policy)
    algorithm.label(batch, modules, START)
    means = descend(algorithm.loss(modules, batch))
    assert means["critic_loss"] == pytest.approx(found["loss"].item(), rel=1e-5)
    same_gradients(policy_layers(policy), found["gradient"])


def test_iql():
    found = case("torchrl", "iql")
    algorithm, modules, batch = made(
        iql, found, mlp_policy("gaussian"), expectile=0.8, beta=30.0, max_weight=100.0
    )
    set_heads(modules["value"], {"0": found["value"]})
    with torch.no_grad():
        modules["policy"].head.log_std.copy_(found["log_std"])
    assert descend(algorithm.value_loss(modules, batch))["value_loss"] == pytest.approx(
        found["value_loss"].item(), rel=1e-5
    )
    same_head_gradients(modules["value"], {"0": found["value_gradient"]})
    means = descend(algorithm.critic_loss(modules, batch), critic_loss=2.0)
    assert 2 * means["critic_loss"] == pytest.approx(found["critic_loss"].item(), rel=1e-5)
    same_head_gradients(modules["critic"], found["critic_gradient"])
    loss = algorithm.policy_loss(modules, batch)
    advantage = algorithm.judged(modules, batch) - iql.state_value(modules, batch, "obs/")
    assert 0 < int(((30.0 * advantage).exp() > 100.0).sum()) < B, "some weights must reach their limit"
    assert descend(loss)["policy_loss"] == pytest.approx(found["policy_loss"].item(), rel=1e-4)
    same_gradients(policy_layers(modules["policy"]), found["policy_gradient"])
    same_parameter(modules["policy"].head.log_std, found["log_std_gradient"])


def test_td3_bc():
    """Its target policy is the policy."""
    found = case("torchrl", "td3_bc")
    algorithm, modules, batch = made(td3_bc, found, mlp_policy("deterministic"), alpha=2.0)
    set_layers(policy_layers(modules["target_policy"]), found["policy"])
    means = descend(algorithm.critic_loss(modules, batch), critic_loss=2.0)
    assert 2 * means["critic_loss"] == pytest.approx(found["critic_loss"].item(), rel=1e-5)
    same_head_gradients(modules["critic"], found["critic_gradient"])
    means = descend(algorithm.policy_loss(modules, batch))
    assert means["policy_loss"] == pytest.approx(found["policy_loss"].item(), rel=1e-5)
    same_gradients(policy_layers(modules["policy"]), found["policy_gradient"])


def test_cql_with_its_multiplier(monkeypatch):
    """Theirs holds the sum over proposals at 4, so ours their mean at 4 - log of their number.

    There is one proposal of each kind, and s' = s: of several, theirs takes the mean of logarithms, and what
    the policy does at s' it values there; ours, as the authors' code and d3rlpy, at s.
    """
    found, shift = case("torchrl", "cql"), math.log(3 * NUM)
    algorithm, modules, batch = made(
        cql, found, mlp_policy("tanh_gaussian"), conservative=1.0, target_gap=4.0 - shift, num_proposals=NUM,
        alpha=0.3, entropy_backup=True,
    )  # fmt: skip
    propose(monkeypatch, found)
    means = descend(algorithm.critic_loss(modules, batch), critic_loss=2.0)
    assert 2 * means["critic_loss"] == pytest.approx(found["critic_loss"].item(), rel=1e-4)
    assert means["conservative_loss"] + 2 * shift == pytest.approx(
        found["conservative_loss"].item(), rel=1e-4
    )
    assert means["multiplier_loss"] == pytest.approx(found["multiplier_loss"].item(), rel=1e-4)
    same_head_gradients(modules["critic"], found["critic_gradient"], rtol=1e-3, atol=1e-5)
    policy = descend(algorithm.policy_loss(modules, batch))["policy_loss"]
    assert policy == pytest.approx(found["policy_loss"].item(), rel=1e-4)
    same_gradients(policy_layers(modules["policy"]), found["policy_gradient"], rtol=1e-3, atol=1e-5)
