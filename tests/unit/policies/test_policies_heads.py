"""Heads: known densities, identities against sums and Monte Carlo, bounds, noise by seed."""

import math

import numpy as np
import pytest
import torch

from rollbus_core import rng
from rollbus_policies._executed import executed, mean_over
from rollbus_policies._heads import (
    Bins,
    Categorical,
    Gaussian,
    MultiCategorical,
    StateGaussian,
    TanhGaussian,
    make_head,
)
from rollbus_wire.errors import SpecError
from rollbus_wire.spec import ActionSpec

CONTINUOUS = ActionSpec("continuous", (2,), low=[-2.0, 0.0], high=[2.0, 1.0])
ONE = ActionSpec("continuous", (1,), low=[-1.0], high=[1.0])


def seeds(num):
    return rng.decision_seeds(rng.stream(1, "test"), np.arange(num), np.zeros(num, int))


def test_tanh_edge_is_finite_and_known():
    head = TanhGaussian(ONE, 0.0)
    params = head(torch.tensor([[10.0, 0.0]]))
    log_prob = head.log_prob(params, torch.tensor([[10.0]]))
    assert log_prob.item() == pytest.approx(17.6948, abs=1e-4)
    stored = torch.from_numpy(head.mode(params).numpy().copy())
    assert head.log_prob(params, stored).item() == pytest.approx(log_prob.item(), abs=1e-4)


@pytest.mark.parametrize("bound", [-1.0, 1.0])
def test_demonstration_at_the_bound_has_value_and_gradient(bound):
    head = TanhGaussian(ONE, 0.0)
    raw = torch.zeros(1, 2, requires_grad=True)
    action = torch.from_numpy(head.from_env_action(np.array([[bound]], np.float32)))
    log_prob = head.log_prob(head(raw), action)
    log_prob.sum().backward()
    assert torch.isfinite(log_prob).all() and torch.isfinite(raw.grad).all()
    assert head.env_action(action.numpy())[0, 0] == pytest.approx(bound, abs=1e-5)


def test_tanh_density_integrates_to_one():
    head = TanhGaussian(ONE, 0.0)
    params = head(torch.tensor([0.7, -0.3]))
    action = np.linspace(-1, 1, 200_003)[1:-1]
    u = torch.tensor(np.arctanh(action), dtype=torch.float32)[:, None]
    mass = np.trapezoid(head.log_prob(params, u).exp().numpy(), action)
    assert mass == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(("mean", "log_std"), [(0.0, 0.0), (1.5, -1.0), (-3.0, 0.5)])
def test_tanh_entropy_equals_monte_carlo(mean, log_std):
    head = TanhGaussian(ONE, 0.0)
    params = head(torch.tensor([mean, log_std]))
    u = head.sample(params, torch.from_numpy(rng.normal(seeds(200_000), 1)))
    assert head.entropy(params).item() == pytest.approx(-head.log_prob(params, u).mean().item(), abs=0.02)


def test_gaussian_log_prob_and_entropy_are_known():
    head = Gaussian(CONTINUOUS, math.log(0.5))
    params = head(torch.tensor([[0.3, -1.0]]))
    action = np.array([[0.1, 0.2]], np.float32)
    normal = torch.distributions.Normal(torch.tensor([0.3, -1.0]), 0.5)
    assert head.log_prob(params, torch.from_numpy(action)).item() == pytest.approx(
        normal.log_prob(torch.from_numpy(action)).sum().item(), abs=1e-5
    )
    # by hand: z = (-0.4, 2.4), so -(0.16 + 5.76) / 2 - 2 log 0.5 - log 2 pi
    by_hand = -2.96 + 2 * math.log(2) - math.log(2 * math.pi)
    assert head.log_prob(params, torch.from_numpy(action)).item() == pytest.approx(by_hand, abs=1e-5)
    assert head.entropy(params).item() == pytest.approx(normal.entropy().sum().item(), abs=1e-5)


def test_gaussian_action_is_stored_raw_and_executed_in_bounds():
    head = Gaussian(CONTINUOUS, 0.0)
    stored = np.array([[0.0, 0.0], [3.0, -3.0], [0.5, 0.5]], np.float32)
    np.testing.assert_allclose(head.env_action(stored), [[0, 0.5], [2, 0], [1, 0.75]])
    inside = np.array([[-1.5, 0.25]], np.float32)
    np.testing.assert_allclose(head.env_action(head.from_env_action(inside)), inside, atol=1e-6)


def test_bounds_are_never_exceeded_in_float32():
    spec = ActionSpec("continuous", (1,), low=[-0.4], high=[0.1])
    executed = Gaussian(spec, 0.0).env_action(np.array([[-9.0], [9.0]], np.float32))
    assert float(executed[0, 0]) >= -0.4 and float(executed[1, 0]) <= 0.1
    assert executed.dtype == np.float32


def test_unbounded_elements_keep_raw_units():
    spec = ActionSpec("continuous", (2,), low=[-math.inf, -2.0], high=[math.inf, 2.0])
    stored = np.array([[7.0, 0.5]], np.float32)
    np.testing.assert_allclose(Gaussian(spec, 0.0).env_action(stored), [[7.0, 1.0]])
    with pytest.raises(SpecError, match="finite action bounds"):
        TanhGaussian(spec, 0.0)


def test_categorical_frequencies_and_log_prob():
    head = Categorical(3)
    params = head(torch.log(torch.tensor([0.2, 0.5, 0.3])).expand(100_000, 3))
    action = head.sample(params, torch.from_numpy(head.noise(seeds(100_000))))
    share = np.bincount(action.numpy(), minlength=3) / 100_000
    np.testing.assert_allclose(share, [0.2, 0.5, 0.3], atol=0.006)
    np.testing.assert_allclose(
        head.log_prob(params[:3], torch.arange(3)).exp().numpy(), [0.2, 0.5, 0.3], atol=1e-6
    )
    expected = -sum(p * math.log(p) for p in (0.2, 0.5, 0.3))
    assert head.entropy(params[0]).item() == pytest.approx(expected, abs=1e-6)


def test_impossible_class_is_never_drawn():
    head = Categorical(3)
    params = head(torch.tensor([0.0, -1e9, 0.0]).expand(10_000, 3))
    action = head.sample(params, torch.from_numpy(head.noise(seeds(10_000))))
    assert not (action == 1).any()
    assert torch.isfinite(head.entropy(params)).all()


def test_multi_categorical_is_the_product_of_its_parts():
    nums = [2, 4, 3]
    head = MultiCategorical(nums)
    raw = torch.randn(5, 9, generator=torch.Generator().manual_seed(0))
    action = torch.tensor([[1, 3, 2], [0, 0, 0], [1, 1, 1], [0, 2, 2], [1, 0, 1]])
    parts = [Categorical(n) for n in nums]
    raws = [part(x) for part, x in zip(parts, raw.split(nums, -1))]
    expected = sum(p.log_prob(x, action[:, i]) for i, (p, x) in enumerate(zip(parts, raws)))
    torch.testing.assert_close(head.log_prob(head(raw), action), expected)
    torch.testing.assert_close(head.entropy(head(raw)), sum(p.entropy(x) for p, x in zip(parts, raws)))
    torch.testing.assert_close(head.mode(head(raw)), torch.stack([x.argmax(-1) for x in raws], -1))


def test_multi_categorical_draws_only_existing_classes():
    head = MultiCategorical([2, 5])
    drawn = head.sample(head(torch.zeros(20_000, 7)), torch.from_numpy(head.noise(seeds(20_000)))).numpy()
    random = head.random(seeds(20_000))
    for found in (drawn, random):
        np.testing.assert_allclose(np.bincount(found[:, 0], minlength=2) / 20_000, [0.5] * 2, atol=0.02)
        np.testing.assert_allclose(np.bincount(found[:, 1], minlength=5) / 20_000, [0.2] * 5, atol=0.02)


@pytest.mark.parametrize("kind", ["gaussian", "tanh_gaussian"])
def test_random_actions_are_uniform_in_the_bounds(kind):
    head = make_head(kind, CONTINUOUS)
    executed = head.env_action(head.random(seeds(20_000)))
    for i, (low, high) in enumerate([(-2, 2), (0, 1)]):
        share = (np.sort(executed[:, i]) - low) / (high - low)
        assert np.abs(share - np.linspace(0, 1, len(share))).max() < 0.015


def test_continuous_heads_refuse_discrete_actions():
    with pytest.raises(SpecError, match="tanh_gaussian needs continuous"):
        make_head("tanh_gaussian", ActionSpec("discrete", num=[3]))


def test_action_shapes_with_two_dimensions():
    spec = ActionSpec("continuous", (2, 3), low=[-1.0] * 6, high=[1.0] * 6)
    for kind in ("gaussian", "tanh_gaussian"):
        head = make_head(kind, spec)
        params = head(torch.zeros(4, head.num_params))
        action = head.sample(params, torch.from_numpy(head.noise(seeds(4))))
        assert action.shape == (4, 2, 3) and head.random(seeds(4)).shape == (4, 2, 3)
        assert head.log_prob(params, action).shape == (4,)


def test_state_gaussian_is_known_and_its_deviation_clamped():
    head = StateGaussian(ONE, -1.0)
    assert head.initial_bias().tolist() == [0.0, -1.0]
    mean, log_std = head(torch.tensor([[0.5, math.log(2.0)], [0.5, 9.0], [0.5, -99.0]]))
    assert log_std[:, 0].tolist() == pytest.approx([math.log(2.0), 2.0, -20.0])
    log_prob = head.log_prob((mean[:1], log_std[:1]), torch.tensor([[2.5]]))
    assert log_prob.item() == pytest.approx(-0.5 - math.log(2.0) - 0.5 * math.log(2 * math.pi), abs=1e-6)
    entropy = head.entropy((mean[:1], log_std[:1])).item()
    assert entropy == pytest.approx(0.5 + 0.5 * math.log(2 * math.pi) + math.log(2.0), abs=1e-6)


def test_bins_are_exact_probabilities_and_execute_their_centres():
    head = Bins(CONTINUOUS, 4)
    raw = torch.tensor([[0.0, 0.0, 0.0, math.log(5.0), 1.0, 1.0, 1.0, 1.0]])
    params = head(raw)
    assert head.log_prob(params, torch.tensor([[3, 2]])).exp().item() == pytest.approx(5 / 8 * 1 / 4)
    every = torch.tensor([[a, b] for a in range(4) for b in range(4)])
    total = head.log_prob(params.expand(16, 2, 4), every).exp().sum().item()
    assert total == pytest.approx(1.0, abs=1e-6)
    executed_actions = head.env_action(np.array([[0, 0], [3, 3]]))
    np.testing.assert_allclose(executed_actions, [[-1.5, 0.125], [1.5, 0.875]], rtol=1e-6)
    for place in range(4):
        stored = np.array([[place, 3 - place]])
        assert np.array_equal(head.from_env_action(head.env_action(stored)), stored)
    edges = head.from_env_action(np.array([[-2.0, 1.0], [2.0, 0.0]], np.float32))
    assert edges.tolist() == [[0, 3], [3, 0]]


def test_bins_need_bounds():
    with pytest.raises(SpecError, match="finite action bounds"):
        make_head("bins", ActionSpec("continuous", (1,), low=[-np.inf], high=[1.0]))


CHUNKS = {
    "gaussian": ("gaussian", CONTINUOUS),
    "tanh": ("tanh_gaussian", CONTINUOUS),
    "bins": ("bins", CONTINUOUS),
    "discrete": ("auto", ActionSpec("discrete", num=[4])),
    "multi": ("auto", ActionSpec("multi_discrete", (3,), num=[2, 5, 3])),
}


@pytest.mark.parametrize("kind", CHUNKS)
def test_a_chunk_is_its_actions_side_by_side(kind):
    """Scores of C actions are those of C heads of one action; of k only the first k."""
    name, spec = CHUNKS[kind]
    chunk = make_head(name, spec, 0.0, num_bins=5, chunk=3, execute=2)
    single = make_head(name, spec, 0.0, num_bins=5)
    # The wide head's raw output holds the actions one after the other; for two-part heads, in each part.
    parts = 2 if kind == "tanh" else 1
    raw = torch.randn(6, parts, 3, single.num_params // parts, generator=torch.Generator().manual_seed(0))
    wide = chunk(raw.reshape(6, -1))
    action = chunk.sample(wide, torch.from_numpy(chunk.noise(seeds(6))))
    each = action.reshape(6, 3, -1).reshape(6, 3, *single.action[1])
    per_action = torch.stack(
        [single.log_prob(single(raw[:, :, c].reshape(6, -1)), each[:, c]) for c in range(3)], -1
    )
    torch.testing.assert_close(chunk.log_probs(wide, action), per_action[:, :2])
    env = chunk.env_action(action.detach().numpy())
    assert env.shape == (6, 2, *spec.shape)
    for c in range(2):
        np.testing.assert_allclose(env[:, c], single.env_action(each[:, c].detach().numpy()), rtol=1e-6)
    whole = chunk.whole(action.detach().numpy())
    again = torch.from_numpy(chunk.from_env_action(whole))
    np.testing.assert_allclose(chunk.whole(again.numpy()), whole, rtol=1e-4, atol=1e-5)
    valid = torch.tensor([True, True, False]).expand(6, 3)
    torch.testing.assert_close(chunk.cloning_loss(wide, action, valid), -per_action[:, :2].mean(-1))


def test_only_executed_actions_count():
    values = torch.tensor([[1.0, 2.0, 4.0], [1.0, 2.0, math.nan], [1.0, math.nan, math.nan]])
    assert executed(values, torch.tensor([3, 2, 1])).tolist() == [7.0, 3.0, 1.0]
    assert executed(values[:1], None).tolist() == [7.0]
    valid = torch.tensor([[True, True, True], [True, True, False], [False, False, False]])
    assert mean_over(values, valid).tolist() == pytest.approx([7 / 3, 1.5, 0.0])
