"""DPPO and NFT: numbers by hand on chains, clips and discounts of steps, preferences."""

import math

import numpy as np
import pytest
import torch
from learner_tiny import SPEC, chunk_batch, episode_batch, flatten
from torch import nn

from rollbus_learner.algorithm import Progress
from rollbus_learner.algorithms import dppo, nft
from rollbus_policies import diffusion, flow

NOW = Progress(updates=0, env_steps=0, total_steps=100)
SMALL = {"width": 16, "num_heads": 2, "layers": 1, "expert_layers": 1, "steps": 3}


def built_dppo(kind=diffusion, chunk=1, execute=0, **settings):
    torch.manual_seed(0)
    config = dppo.Config(num_steps=8, minibatches=4, **settings)
    policy = kind.make(kind.Config(**SMALL, chunk=chunk, execute=execute), SPEC, critic=True)
    return dppo.make(config, SPEC, policy, config.feed(num_envs=4, num_slices=1, deterministic=False))


def test_limits_grow_and_discounts_fall_towards_the_noise():
    algorithm = built_dppo(clip=0.01, clip_first=0.001, step_discount=0.9)
    steps = torch.zeros(5, 3)
    middle = 0.001 + 0.009 * (math.exp(1.5) - 1) / (math.exp(3.0) - 1)
    assert algorithm.limits(steps).tolist() == pytest.approx([0.001, middle, 0.01])
    assert algorithm.discounts(steps).tolist() == pytest.approx([0.81, 0.9, 1.0])
    assert algorithm.limits(torch.zeros(5, 1)).tolist() == pytest.approx([0.01])


class Chain(nn.Module):
    """Gives log-probs of elements [B, n, k, A] as they are."""

    def __init__(self, elements):
        super().__init__()
        self.elements = elements

    def forward(self, batch, want):
        return {"chain_log_prob": self.elements}


def test_a_steps_log_prob_is_the_mean_of_its_clamped_executed_elements():
    """Two actions of two elements; of the second row only the first action was executed."""
    rows = [[[[-1.0, 3.0], [-9.0, 1.0]]], [[[-2.0, 0.0], [7.0, 7.0]]]]
    algorithm = built_dppo()
    found = algorithm.steps_log_prob(
        {"policy": Chain(torch.tensor(rows))}, {"num_steps": torch.tensor([2, 1])}
    )
    assert found.tolist() == [[pytest.approx((-1 + 2 - 5 + 1) / 4)], [-1.0]]


@pytest.mark.parametrize("kind", [diffusion, flow])
def test_elements_of_the_chain_sum_to_the_log_prob(kind):
    algorithm = built_dppo(kind)
    batch = chunk_batch(algorithm.policy)
    seen = {"obs/x": batch["obs/x"][:8], "action": batch["action"], "num_steps": batch["num_steps"]}
    with torch.no_grad():
        found = algorithm.policy(seen, ("log_prob", "chain_log_prob"))
    assert found["chain_log_prob"].shape == (8, 4, 3, 1, 2)
    total = found["chain_log_prob"].sum((-3, -2, -1))
    np.testing.assert_allclose(total, found["log_prob"], rtol=1e-4, atol=1e-4)


def test_first_loss_is_minus_the_discounted_mean_advantage():
    algorithm = built_dppo(normalise_advantage=False, step_discount=0.9)
    roles, batch = {"policy": algorithm.policy}, chunk_batch(algorithm.policy)
    algorithm.label(batch, roles, NOW)
    part = flatten(batch, 8)
    total, count = algorithm.loss(roles, part).terms["policy_loss"]
    by_hand = -float(part["advantage"].mean()) * (0.81 + 0.9 + 1.0) / 3
    assert float(total.detach()) / int(count) == pytest.approx(by_hand, rel=1e-4)


def test_a_step_beyond_its_own_clip_has_no_gradient():
    """All three steps move by .005: beyond the first limit .001, within the last .01."""
    algorithm = built_dppo(normalise_advantage=False)
    part = {
        "old_steps": torch.zeros(1, 3), "advantage": torch.ones(1), "target": torch.zeros(1),
        "old_value": torch.zeros(1), "num_steps": torch.ones(1, dtype=torch.int32),
    }  # fmt: skip
    moved = torch.full((1, 3, 1, 1), math.log(1.005), requires_grad=True)

    class Moved(nn.Module):
        def forward(self, batch, want):
            return {"chain_log_prob": moved, "entropy": torch.zeros(1), "value": torch.zeros(1)}

    algorithm.loss({"policy": Moved()}, part).terms["policy_loss"][0].backward()
    slopes = moved.grad.flatten().tolist()
    assert slopes[0] == slopes[1] == 0 and slopes[2] == pytest.approx(-1.005 / 3, rel=1e-4)


def test_nobody_may_run_ahead_of_dppo():
    with pytest.raises(ValueError, match="max_lag 1"):
        dppo.Config(max_lag=1)


def built_nft(**settings):
    torch.manual_seed(0)
    config = nft.Config(**({"num_groups": 2, "group_size": 8} | settings))
    policy = flow.make(flow.Config(**SMALL, chunk=1), SPEC, critic=False)
    return nft.make(config, SPEC, policy, config.feed(num_envs=16, num_slices=1, deterministic=False))


def roles_of(algorithm):
    return {name: role.module for name, role in algorithm.roles().items()}


def test_preferences_by_hand():
    """A group with advantages +-a has p = (1 +- a / 5) / 2; one whose members are alike .5."""
    algorithm = built_nft(group_size=2, num_groups=8)
    batch = episode_batch(algorithm.policy)
    batch["reward"][:] = 0.0
    batch["reward"][0, :2, 0] = torch.tensor([1.0, 0.0])
    algorithm.label(batch, roles_of(algorithm), NOW)
    a = 0.5 / math.sqrt(0.5)
    assert batch["preference"][3, :4].tolist() == pytest.approx(
        [(1 + a / 5) / 2, (1 - a / 5) / 2, 0.5, 0.5], rel=1e-4
    )


@pytest.mark.parametrize("preference", [0.0, 0.5, 1.0])
def test_loss_by_hand_with_one_element(preference):
    """x 1, t .5, noised .2, v_old 1, v 2, beta .5: x_t - t v+- is -.55 and -.05, errors 2.4025 and 1.1025."""
    algorithm = built_nft(beta=0.5, advantage_limit=2.0, weight="constant")
    part = {
        "preference": torch.tensor([preference]), "clean": torch.ones(1, 1, 1),
        "time": torch.full((1, 1), 0.5),
        "noised": torch.full((1, 1, 1, 1), 0.2), "old_velocity": torch.ones(1, 1, 1, 1),
        "num_steps": torch.ones(1, dtype=torch.int32),
    }  # fmt: skip

    class Two(nn.Module):
        def forward(self, batch, want):
            return {"velocity": torch.full_like(batch["x"], 2.0)}

    total, count = algorithm.loss({"policy": Two()}, part).terms["policy_loss"]
    liked, disliked = (0.2 - 0.5 * 1.5 - 1) ** 2, (0.2 - 0.5 * 0.5 - 1) ** 2
    assert float(total) / count == pytest.approx(
        (preference * liked + (1 - preference) * disliked) * 4, rel=1e-5
    )


def test_equal_preferences_move_nothing():
    """Where all members of each group score alike, p is .5 and the gradient at v = v_old is 0."""
    algorithm = built_nft(weight="constant")
    roles, batch = roles_of(algorithm), episode_batch(algorithm.policy)
    batch["reward"][:] = 1.0
    assert algorithm.label(batch, roles, NOW)["preference_std"] == 0.0
    assert (batch["preference"] == 0.5).all()
    total, count = algorithm.loss(roles, flatten(batch, 8)).terms["policy_loss"]
    (total / count).backward()
    slopes = [p.grad.abs().max() for p in algorithm.policy.parameters() if p.grad is not None]
    assert slopes and max(slopes) < 1e-4


def test_actions_that_were_not_executed_have_no_error():
    algorithm = built_nft()
    part = {"clean": torch.zeros(1, 2, 1), "time": torch.ones(1, 1), "noised": torch.zeros(1, 1, 2, 1)}
    velocity = torch.tensor([[[[3.0], [100.0]]]])
    one = algorithm.error(part | {"num_steps": torch.tensor([1])}, velocity)
    assert one.tolist() == pytest.approx([9.0 / 3.0])


def test_old_follows_and_is_what_actors_get():
    algorithm = built_nft(old_rate=0.25)
    roles = roles_of(algorithm)
    name, weight = next((n, p) for n, p in algorithm.policy.named_parameters() if p.numel() > 1)
    before = weight.detach().clone()
    with torch.no_grad():
        weight += 1.0
    batch = episode_batch(algorithm.policy)
    algorithm.after_update(batch, roles, {})
    np.testing.assert_allclose(algorithm.publish(roles)[name], before + 0.25, rtol=1e-5, atol=1e-6)
