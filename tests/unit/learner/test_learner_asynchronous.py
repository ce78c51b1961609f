"""Learning from samples that are some updates old: decoupled PPO, V-trace, weights, foreign decisions."""

import math

import numpy as np
import pytest
import torch
from learner_tiny import SPEC, TinyPolicy, chunk_batch, flatten

from rollbus_core.columns import SOURCES
from rollbus_core.version import Version
from rollbus_learner.algorithm import Progress
from rollbus_learner.algorithms import decoupled_ppo, ppo, vtrace
from rollbus_learner.estimators import vtrace as vtrace_of_arrays

NOW = Progress(updates=5, env_steps=0, total_steps=100)


def built(module, **settings):
    torch.manual_seed(0)
    config = module.Config(num_steps=8, minibatches=4, **settings)
    feed = config.feed(num_envs=4, num_slices=1, deterministic=False)
    return module.make(config, SPEC, TinyPolicy(), feed)


def acted_by(policy, age, gap=0.0):
    """A batch that versions ``age`` updates before NOW acted; their log-probs are ``gap`` lower than now."""
    batch = chunk_batch(policy)
    batch["version"][:] = Version(3, NOW.updates - age).pack()
    batch["log_prob"] = batch["log_prob"] - gap
    return batch


def row(**columns):
    return {name: torch.tensor(values) for name, values in columns.items()}


def test_interpolated_proximal_policy_and_its_weight_by_hand():
    """lp_mu -1, lp -.4, three updates old: lp_prox = -1 + 3/4 x .6 = -.55, w = exp(.45)."""
    algorithm = built(decoupled_ppo)
    batch = row(log_prob=[-1.0, -1.0], alpha=[0.75, 0.0], advantage=[2.0, 2.0])
    found = algorithm.behaviour(batch, torch.tensor([-0.4, -0.4]), None)
    assert found.log_prob.tolist() == pytest.approx([-0.55, -1.0])
    assert found.advantage.tolist() == pytest.approx([2 * math.exp(0.45), 2.0])
    assert found.valid.tolist() == [True, True]


def test_samples_above_the_weight_limit_leave_numerator_and_count():
    """alpha .5 and lp - lp_mu of 1, 4, 4: weights exp(.5), exp(2) > 5; the last one is padding."""
    algorithm = built(decoupled_ppo, normalise_advantage=False)
    batch = row(log_prob=[-5.0, -5.0, -5.0], alpha=[0.5, 0.5, 0.5], advantage=[1.0, 1.0, 1.0])
    found = algorithm.behaviour(batch, torch.tensor([-4.0, -1.0, -1.0]), torch.tensor([True, True, False]))
    assert found.valid.tolist() == [True, False, False]
    assert [float(part) for part in found.metrics["weights_cut"]] == [1.0, 2.0]


def test_age_of_samples_gives_alpha():
    algorithm = built(decoupled_ppo)
    batch = acted_by(algorithm.policy, age=3)
    algorithm.label(batch, {"policy": algorithm.policy}, NOW)
    assert batch["alpha"].unique().tolist() == [0.75]


@pytest.mark.parametrize("proximal", ["interpolated", "recomputed"])
def test_at_lag_zero_it_is_ppo(proximal):
    losses = []
    for module, more in ((ppo, {}), (decoupled_ppo, {"proximal": proximal})):
        algorithm = built(module, **more)
        roles, batch = {"policy": algorithm.policy}, acted_by(algorithm.policy, age=0)
        algorithm.label(batch, roles, NOW)
        with torch.no_grad():
            algorithm.policy.mean.weight += 0.05
        found = algorithm.loss(roles, flatten(batch, 8))
        losses.append({name: float(a) / float(b) for name, (a, b) in found.terms.items()})
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_interpolated_has_the_gradient_of_ppo_with_a_clip_that_widens_with_age():
    """Ratio (pi / mu) ** (1 / 5) within 1 +- .04 at age 4: pi / mu within .96 ** 5 and 1.04 ** 5."""
    gradients, shares = [], []
    for module, settings in (
        (decoupled_ppo, {"clip": 0.04, "weight_limit": 1e6}),
        (ppo, {"clip": 1 - 0.96**5, "clip_high": 1.04**5 - 1}),
    ):
        algorithm = built(module, value_coef=0.0, entropy_coef=0.0, **settings)
        roles, batch = {"policy": algorithm.policy}, acted_by(algorithm.policy, age=4)
        algorithm.label(batch, roles, NOW)
        with torch.no_grad():
            algorithm.policy.mean.weight += 0.15
        found = algorithm.loss(roles, flatten(batch, 8))
        total, count = found.terms["policy_loss"]
        gradients.append(torch.autograd.grad(total / count, algorithm.policy.mean.weight)[0])
        clipped, samples = found.metrics["clip_fraction"]
        shares.append(float(clipped) / float(samples))
    assert shares[0] == shares[1] and 0 < shares[0] < 1
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-6)


def test_recomputed_is_the_learners_own_policy_at_the_start_of_the_update():
    """All log-probs .5 lower when acting: w = exp(.5), the ratio is 1 at first."""
    algorithm = built(decoupled_ppo, proximal="recomputed", normalise_advantage=False)
    batch = acted_by(algorithm.policy, age=2, gap=0.5)
    algorithm.label(batch, {"policy": algorithm.policy}, NOW)
    part = flatten(batch, 8)
    found = algorithm.loss({"policy": algorithm.policy}, part)
    total, count = found.terms["policy_loss"]
    assert float(total) / float(count) == pytest.approx(
        -math.exp(0.5) * float(part["advantage"].mean()), rel=1e-4
    )
    assert float(found.metrics["clip_fraction"][0]) == 0


def test_vtrace_labels_are_those_of_the_estimator():
    algorithm = built(vtrace, normalise_advantage=False, gamma=0.9, gae_lambda=0.95)
    policy, batch = algorithm.policy, acted_by(algorithm.policy, age=2, gap=-0.3)
    metrics = algorithm.label(batch, {"policy": policy}, NOW)
    with torch.no_grad():
        value = policy({"obs/x": batch["obs/x"]}, ("value",))["value"].numpy()
        final = policy({"obs/x": batch["final_obs/x"]}, ("value",))["value"].numpy()
    slot = batch["final_slot"].numpy()
    advantage, target = vtrace_of_arrays(
        reward=batch["reward"][..., 0].numpy(), discount=np.full((8, 4), 0.9, np.float32), value=value,
        final_value=np.where(slot >= 0, final[slot], 0.0), terminated=batch["terminated"].numpy(),
        truncated=batch["truncated"].numpy(), valid=batch["valid"].numpy(),
        log_ratio=np.full((8, 4), -0.3, np.float32), lam=0.95,
    )  # fmt: skip
    np.testing.assert_allclose(batch["advantage"], advantage, atol=1e-5)
    np.testing.assert_allclose(batch["target"], target, atol=1e-5)
    assert metrics["ratio_mean"] == pytest.approx(math.exp(-0.3), rel=1e-5)


def test_vtrace_loss_by_hand():
    """-A log pi, the squared error of the value times its weight, minus the entropy times its weight."""
    algorithm = built(vtrace, value_coef=0.5, entropy_coef=0.1)
    policy, batch = algorithm.policy, acted_by(algorithm.policy, age=1)
    algorithm.label(batch, {"policy": policy}, NOW)
    part = flatten(batch, 8)
    found = algorithm.loss({"policy": policy}, part).terms
    with torch.no_grad():
        new = policy(part, ("log_prob", "entropy", "value"))
    means = {name: float(total) / float(count) for name, (total, count) in found.items()}
    assert means["policy_loss"] == pytest.approx(
        float(-(part["advantage"] * new["log_prob"]).mean()), rel=1e-4
    )
    error = new["value"] - part["target"]
    assert means["value_loss"] == pytest.approx(float(0.5 * (error**2).mean()), rel=1e-4)
    assert means["entropy_loss"] == pytest.approx(float(-0.1 * new["entropy"].mean()), rel=1e-4)


def test_weights_of_the_gap_are_cut_and_the_ratio_is_against_the_learner():
    """The actor's log-probs are .5 lower in rows 0 and 1, 3 lower in rows 2 and 3: weights exp(.5) and 2."""
    plain, weighed = (
        built(ppo, normalise_advantage=False),
        built(ppo, normalise_advantage=False, gap_weight_limit=2),
    )
    batches = []
    for algorithm in (plain, weighed):
        batch = acted_by(algorithm.policy, age=0)
        now = batch["log_prob"].clone()
        batch["log_prob"][:, :2] -= 0.5
        batch["log_prob"][:, 2:] -= 3.0
        metrics = algorithm.label(batch, {"policy": algorithm.policy}, NOW)
        batches.append(batch)
    valid, factor = batches[0]["valid"], batches[1]["advantage"] / batches[0]["advantage"]
    assert factor[:, :2][valid[:, :2]].tolist() == pytest.approx(
        [math.exp(0.5)] * int(valid[:, :2].sum()), rel=1e-4
    )
    assert factor[:, 2:][valid[:, 2:]].tolist() == pytest.approx([2.0] * int(valid[:, 2:].sum()), rel=1e-4)
    assert torch.allclose(batches[1]["log_prob"][valid], now[valid], atol=1e-6)
    assert metrics["gap_weights_cut"] == pytest.approx(float(valid[:, 2:].sum() / valid.sum()))


@pytest.mark.parametrize("module", [ppo, decoupled_ppo, vtrace])
def test_what_others_decided_leaves_the_ratio(module):
    algorithm = built(module)
    batch = acted_by(algorithm.policy, age=0)
    batch["source"] = torch.zeros_like(batch["version"], dtype=torch.uint8)
    batch["source"][3, 1] = SOURCES.index("human")
    batch["source"][4, 2] = SOURCES.index("random")
    before = batch["valid"].clone()
    algorithm.label(batch, {"policy": algorithm.policy}, NOW)
    gone = (before & ~batch["valid"]).nonzero().tolist()
    assert gone == [[3, 1], [4, 2]]
    assert torch.isfinite(batch["advantage"][batch["valid"]]).all()
