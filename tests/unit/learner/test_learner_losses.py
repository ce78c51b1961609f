"""Loss formulas: hand-computed values, identities, and stable-baselines3's own training step."""

import math

import numpy as np
import pytest
import torch

from rollbus_learner import losses, masked

RHO = torch.tensor([1.5, 0.5, 1.5, 0.5, 1.0])
ADVANTAGE = torch.tensor([1.0, 1.0, -1.0, -1.0, 2.0])


def test_ppo_clip_is_pessimistic_on_both_sides():
    loss = losses.ppo_clip(RHO, ADVANTAGE, 0.2, 0.2)
    torch.testing.assert_close(loss, torch.tensor([-1.2, -0.5, 1.5, 0.8, -2.0]))


def test_upper_and_lower_clip_differ():
    loss = losses.ppo_clip(RHO, ADVANTAGE, 0.1, 0.28)
    torch.testing.assert_close(loss, torch.tensor([-1.28, -0.5, 1.5, 0.9, -2.0]))


def test_dual_clip_bounds_negative_advantages_only():
    rho = torch.tensor([10.0, 10.0, 2.0])
    loss = losses.ppo_clip(rho, torch.tensor([-2.0, 2.0, -2.0]), 0.2, 0.2, dual_clip=3.0)
    torch.testing.assert_close(loss, torch.tensor([6.0, -2.4, 4.0]))


def test_clipped_samples_have_no_gradient():
    log_prob = RHO.log().requires_grad_()
    losses.ppo_clip(losses.ratio(log_prob, torch.zeros(5)), ADVANTAGE, 0.2, 0.2).sum().backward()
    torch.testing.assert_close(log_prob.grad, torch.tensor([0.0, -0.5, 1.5, 0.0, -2.0]))


def test_clip_fraction_counts_the_unclamped_ratio():
    assert losses.outside_clip(RHO, 0.2, 0.2).tolist() == [1, 1, 1, 1, 0]
    assert losses.outside_clip(RHO, 0.6, 0.4).tolist() == [1, 0, 1, 0, 0]


def test_a_huge_ratio_stays_finite():
    log_prob = torch.tensor([500.0], requires_grad=True)
    loss = losses.ppo_clip(losses.ratio(log_prob, torch.zeros(1)), torch.zeros(1), 0.2, 0.2)
    loss.sum().backward()
    assert loss.item() == 0.0 and log_prob.grad.isfinite().all()


def test_value_loss_squared_huber_and_clipped():
    value, target, old = torch.tensor([1.0, 5.0, 2.0]), torch.zeros(3), torch.tensor([1.0, 5.0, 0.0])
    assert losses.value_loss(value, target, old).tolist() == [1.0, 25.0, 4.0]
    assert losses.value_loss(value, target, old, huber_delta=2.0).tolist() == [1.0, 16.0, 4.0]
    # The third moved by 2 where 0.5 is allowed: held at 0.5 its loss is 0.25, and the larger counts.
    assert losses.value_loss(value, target, old, clip=0.5).tolist() == [1.0, 25.0, 4.0]
    far = torch.full((3,), 4.0)
    assert losses.value_loss(value, far, old, clip=0.5).tolist() == [9.0, 1.0, 12.25]


def test_kl_estimators_against_the_closed_form():
    torch.manual_seed(0)
    p, q = torch.distributions.Normal(0.0, 1.0), torch.distributions.Normal(0.1, 1.1)
    x = p.sample((400_000,)).double()
    exact = torch.distributions.kl_divergence(p, q).item()
    lp, lr = p.log_prob(x), q.log_prob(x)
    assert losses.kl_k1(lp, lr).mean().item() == pytest.approx(exact, rel=0.1)
    assert losses.kl_k3(lp, lr).mean().item() == pytest.approx(exact, rel=0.03)
    assert losses.kl_k2(lp, lr).mean().item() == pytest.approx(exact, rel=0.2)
    assert losses.kl_k3(lp, lr).min() >= 0


def test_kl_estimators_by_hand():
    lp, lr = torch.tensor([0.0]), torch.tensor([math.log(2.0)])
    torch.testing.assert_close(losses.kl_k1(lp, lr), torch.tensor([-math.log(2.0)]))
    torch.testing.assert_close(losses.kl_k2(lp, lr), torch.tensor([0.5 * math.log(2.0) ** 2]))
    torch.testing.assert_close(losses.kl_k3(lp, lr), torch.tensor([2.0 - math.log(2.0) - 1.0]))


def test_gradient_of_k2_is_that_of_the_kl():
    """On samples of the policy; k1 as a loss has none in the mean."""
    torch.manual_seed(1)
    mean = torch.tensor(0.3, dtype=torch.double, requires_grad=True)
    x = 0.3 + torch.randn(400_000, dtype=torch.double)
    lp, lr = (
        torch.distributions.Normal(mean, 1.0).log_prob(x),
        torch.distributions.Normal(0.0, 1.0).log_prob(x),
    )
    (k2,) = torch.autograd.grad(losses.kl_k2(lp, lr).mean(), mean, retain_graph=True)
    (k1,) = torch.autograd.grad(losses.kl_k1(lp, lr).mean(), mean)
    assert k2.item() == pytest.approx(0.3, abs=0.01) and k1.item() == pytest.approx(0.0, abs=0.01)


def test_explained_variance():
    target, valid = torch.tensor([1.0, 2.0, 3.0, 99.0]), torch.tensor([True, True, True, False])
    assert losses.explained_variance(target, target, valid) == 1.0
    assert losses.explained_variance(torch.full((4,), 2.0), target, valid).item() == pytest.approx(0.0)
    assert losses.explained_variance(-target, target, valid).item() == pytest.approx(-3.0)
    assert losses.explained_variance(target, torch.ones(4), valid) == 0.0


def _after_a_rollout(seed: int):
    """A stable-baselines3 PPO whose buffer is full and whose policy has moved since."""
    sb3 = pytest.importorskip("stable_baselines3")
    model = sb3.PPO(
        "MlpPolicy", "CartPole-v1", n_steps=96, batch_size=96, n_epochs=1, learning_rate=0.0, seed=seed
    )
    model.learn(96)
    with torch.no_grad():
        for parameter in model.policy.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model


@pytest.mark.parametrize("seed", [0, 1])
def test_same_losses_as_the_training_step_of_stable_baselines3(seed):
    torch.manual_seed(seed)
    model = _after_a_rollout(seed)
    model.train()
    theirs = model.logger.name_to_value

    data = next(model.rollout_buffer.get(96))
    value, log_prob, entropy = model.policy.evaluate_actions(data.observations, data.actions.flatten())
    valid = torch.ones(96, dtype=torch.bool)
    advantage = masked.normalise(data.advantages, valid)
    rho = losses.ratio(log_prob, data.old_log_prob)
    policy = masked.mean(losses.ppo_clip(rho, advantage, 0.2, 0.2), valid)
    value_loss = masked.mean(losses.value_loss(value.flatten(), data.returns, data.old_values), valid)
    ours = {
        "train/policy_gradient_loss": policy,
        "train/value_loss": value_loss,
        "train/entropy_loss": -masked.mean(entropy, valid),
        "train/approx_kl": masked.mean(losses.kl_k3(data.old_log_prob, log_prob), valid),
        "train/clip_fraction": masked.mean(losses.outside_clip(rho, 0.2, 0.2), valid),
        "train/loss": policy + 0.5 * value_loss,
        "train/explained_variance": losses.explained_variance(data.old_values, data.returns, valid),
    }
    assert theirs["train/clip_fraction"] > 0, "the case must reach the clip"
    for name, got in ours.items():
        np.testing.assert_allclose(got.item(), theirs[name], rtol=2e-4, atol=1e-6, err_msg=name)
