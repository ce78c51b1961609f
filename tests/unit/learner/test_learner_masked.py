"""Masked reductions: T5 of the list of known pitfalls, and what surrounds it."""

import numpy as np
import pytest
import torch

from rollbus_learner import masked

ENTROPY = torch.tensor([1.0, 2.0, 3.0, 4.0])


def test_mean_of_all():
    assert masked.mean(ENTROPY, torch.ones(4, dtype=torch.bool)).item() == 2.5


@pytest.mark.parametrize("shape", [(4, 1), (1, 4), (3,), ()])
def test_another_shape_is_an_error_and_no_broadcast(shape):
    with pytest.raises(ValueError, match="differ in shape"):
        masked.total(ENTROPY, torch.ones(shape, dtype=torch.bool))


def test_a_float_mask_is_an_error():
    with pytest.raises(ValueError, match="bool"):
        masked.mean(ENTROPY, torch.ones(4))


def test_reward_to_go_ends_at_the_padding():
    reward = torch.tensor([1.5, 1.0, 2.0, 2.0])
    mask = torch.tensor([True, True, False, False])
    assert masked.reward_to_go(reward, mask, 1.0).tolist() == [2.5, 1.0, 0.0, 0.0]
    assert masked.reward_to_go(reward, mask, 0.5).tolist() == [2.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize("padding", [1e6, float("nan"), float("inf")])
def test_padded_values_change_neither_loss_nor_gradient(padding):
    mask = torch.tensor([True, False, True, False])

    def both(value):
        x = torch.where(mask, ENTROPY, torch.tensor(value)).requires_grad_()
        loss = masked.mean(masked.select(x, mask) ** 2, mask) + masked.normalise(x, mask).square().sum()
        loss.backward()
        return loss.detach(), x.grad

    (loss, gradient), (loss_padded, gradient_padded) = both(7.0), both(padding)
    assert torch.equal(loss, loss_padded) and torch.equal(gradient, gradient_padded)


def test_total_gives_sum_and_count():
    numerator, count = masked.total(ENTROPY, torch.tensor([False, True, True, False]))
    assert (numerator.item(), count.item()) == (5.0, 2)


def test_nothing_valid_is_zero():
    none = torch.zeros(4, dtype=torch.bool)
    assert masked.mean(ENTROPY, none) == 0 and masked.variance(ENTROPY, none) == 0
    assert torch.equal(masked.normalise(ENTROPY, none), torch.zeros(4))


def test_normalise_equals_numpy_on_the_valid_part():
    rng = np.random.default_rng(0)
    x, mask = rng.normal(3.0, 2.0, (7, 5)), rng.random((7, 5)) < 0.6
    got = masked.normalise(torch.from_numpy(x), torch.from_numpy(mask)).numpy()
    want = (x - x[mask].mean()) / (x[mask].std(ddof=1) + 1e-8)
    np.testing.assert_allclose(got[mask], want[mask], rtol=1e-12)
    assert not got[~mask].any()


@pytest.mark.parametrize("x", [[2.0, 2.0, 2.0], [5.0]])
def test_normalise_of_equal_values_or_one_is_zero(x):
    x = torch.tensor(x)
    assert torch.equal(masked.normalise(x, torch.ones_like(x, dtype=torch.bool)), torch.zeros_like(x))
