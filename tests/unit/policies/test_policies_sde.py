"""gSDE: densities next to stable-baselines3's, noise that is held and belongs to its row alone."""

import math

import numpy as np
import pytest
import torch
from stable_baselines3.common.distributions import StateDependentNoiseDistribution

from rollbus_core import rng
from rollbus_policies import act, base, mlp, recurrent, transformer
from rollbus_policies._heads import make_head
from rollbus_policies._heads_sde import Sde, TanhSde
from rollbus_policies.base import Ask
from rollbus_wire.errors import SpecError
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec

ACTION = ActionSpec("continuous", (2,), low=[-1.0, -1.0], high=[1.0, 1.0])
SPEC = EnvSpec("sde", {"x": ArraySpec("float32", (3,))}, ACTION)
KINDS = pytest.mark.parametrize("kind", ["gsde", "tanh_gsde"])


def head_of(kind, num_features=5):
    torch.manual_seed(0)
    head = make_head(kind, ACTION, -1.0)
    head.read(num_features)
    head.log_std.data.uniform_(-2.0, 0.5)
    return head


def test_a_density_by_hand():
    """Features (1, 2), deviations (1/2, 1/4): variance 1/4 + 4/16 = 1/2."""
    head = Sde(ActionSpec("continuous", (1,), low=[-1.0], high=[1.0]), 0.0)
    head.read(2)
    head.log_std.data = torch.tensor([[math.log(0.5)], [math.log(0.25)]])
    params = head(torch.tensor([[0.5]]), torch.tensor([[1.0, 2.0]]))
    found = head.log_prob(params, torch.tensor([[1.5]]))
    assert found.item() == pytest.approx(-1.0 - 0.5 * math.log(2 * math.pi * 0.5), abs=1e-4)
    assert head.entropy(params).item() == pytest.approx(0.5 + 0.5 * math.log(2 * math.pi * 0.5), abs=1e-4)


@KINDS
def test_next_to_stable_baselines3(kind):
    """Same features, means and deviations: log-probs, entropies, and gradients of both."""
    head, squashed = head_of(kind), kind == "tanh_gsde"
    theirs = StateDependentNoiseDistribution(2, squash_output=squashed, learn_features=squashed)
    theirs.proba_distribution_net(5)
    features, mean = torch.randn(64, 5), 0.5 * torch.randn(64, 2)
    stored = mean + 0.3 * torch.randn(64, 2)
    gradients = []
    for own in (True, False):
        given = [t.clone().requires_grad_() for t in (features, mean, head.log_std.detach())]
        if own:
            head.log_std = torch.nn.Parameter(given[2].detach().clone())
            params = head(given[1], given[0])
            log_prob, entropy = head.log_prob(params, stored), head.entropy(params)
            given[2] = head.log_std
        else:
            there = theirs.proba_distribution(given[1], given[2], given[0])
            log_prob_theirs = there.log_prob(torch.tanh(stored) if squashed else stored)
            torch.testing.assert_close(log_prob, log_prob_theirs, atol=2e-4, rtol=1e-4)
            if not squashed:
                torch.testing.assert_close(entropy, there.entropy(), atol=1e-5, rtol=1e-5)
            log_prob = log_prob_theirs
        gradients.append(torch.autograd.grad(log_prob.sum(), given, allow_unused=True))
    for ours, others in zip(*gradients):
        assert (ours is None) == (others is None)
        if ours is not None:
            torch.testing.assert_close(ours, others, atol=1e-3, rtol=1e-3)
    assert (gradients[0][0] is None) == (not squashed)


@KINDS
def test_over_many_matrices_actions_have_the_density_that_is_scored(kind):
    head, num = head_of(kind), 20_000
    features, mean = torch.randn(1, 5).expand(num, 5), torch.tensor([[0.3, -0.2]]).expand(num, 2)
    with torch.no_grad():
        params = head(mean, features)
        seeds = rng.decision_seeds(rng.stream(0, "t"), np.arange(num), np.zeros(num, int))
        drawn = head.decide(params, features, seeds, seeds)
    torch.testing.assert_close(drawn.mean(0), mean[0], atol=0.04, rtol=0)
    torch.testing.assert_close(drawn.std(0), params[1][0].exp(), atol=0, rtol=0.02)


def policy_of(module=mlp, **settings):
    torch.manual_seed(0)
    small = {
        "chunk": 1,
        "hidden": [16],
        "width": 16,
        "num_heads": 2,
        "heads": 2,
        "layers": 1,
        "expert_layers": 1,
    }
    known = {k: v for k, v in small.items() if k in module.Config.model_fields}
    config = module.Config(name=module.__name__.split(".")[-1], **(known | {"head": "gsde"} | settings))
    return base.make(config, SPEC, critic=False)


def acted(policy, x, seeds, held):
    state = np.zeros((len(x), policy.spec.state_size), np.float32) if policy.spec.state_size else None
    return policy.act({"x": x}, state, Ask("sample", ("log_prob",), held=held), seeds)


@pytest.mark.parametrize("head", ["gsde", "tanh_gsde"])
@pytest.mark.parametrize("module", [mlp, recurrent, transformer, act])
def test_noise_is_held_and_of_the_row_alone(module, head):
    policy = policy_of(module, head=head, sde_sample_freq=4)
    assert policy.spec.held_noise == 4 and policy.spec.no_trunk
    x = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    key = rng.stream(0, "t")
    seeds = [rng.decision_seeds(key, np.arange(6), np.full(6, step)) for step in range(3)]
    now = acted(policy, x, seeds[0], seeds[0])
    later = acted(policy, x, seeds[1], seeds[0])
    np.testing.assert_array_equal(now.action, later.action)
    anew = acted(policy, x, seeds[1], seeds[1])
    assert (now.action != anew.action).all()
    for row in range(6):
        alone = acted(policy, x[row : row + 1], seeds[0][row : row + 1], seeds[0][row : row + 1])
        np.testing.assert_allclose(alone.action[0], now.action[row], atol=1e-5)
    # The learner scores what the actor recorded.
    batch = {"obs/x": torch.from_numpy(x), "action": torch.from_numpy(now.action)}
    if policy.spec.state_size:
        batch = {name: value[None] for name, value in batch.items()} | {
            "state": torch.zeros(6, policy.spec.state_size),
            "start": torch.ones(1, 6, dtype=torch.bool),
        }
    scored = policy(batch, ("log_prob",))["log_prob"].reshape(6)
    np.testing.assert_allclose(scored.detach().numpy(), now.extras["log_prob"], atol=1e-5)


def test_modes_are_kept_apart():
    policy = policy_of(head="tanh_gsde")
    x, seeds = np.ones((3, 3), np.float32), np.arange(3, dtype=np.uint64)
    mixed = policy.act({"x": x}, None, Ask(["sample", "mode", "random"], held=seeds), seeds)
    for row, mode in enumerate(("sample", "mode", "random")):
        np.testing.assert_array_equal(
            mixed.action[row], policy.act({"x": x}, None, Ask(mode, held=seeds), seeds).action[row]
        )


def test_samples_with_gradient_reach_features_and_deviations():
    policy = policy_of(head="tanh_gsde")
    batch = {"obs/x": torch.randn(8, 3), "noise": torch.randn(8, policy.spec.noise)}
    found = policy(batch, ("sample",))
    (found["sample_log_prob"] + found["squashed"].sum(-1)).sum().backward()
    assert policy.head.log_std.grad.abs().sum() > 0
    assert all(p.grad is not None for n, p in policy.named_parameters())
    assert isinstance(policy.head, TanhSde)


def test_chunks_are_refused():
    with pytest.raises(SpecError, match="policy.chunk: 1"):
        policy_of(chunk=2)
