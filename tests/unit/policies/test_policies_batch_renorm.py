"""Batch renormalisation: by hand, the warm-up, its bounds, gradients, and networks apart from each other."""

import pytest
import torch

from rollbus_policies._batch_renorm import EPS, BatchRenorm


def column(*values):
    return torch.tensor(values).reshape(1, -1, 1)


def test_warm_up_is_plain_batch_normalisation():
    norm = BatchRenorm(1, 1, warm_up=1)
    got = norm(column(0.0, 2.0, 4.0), running=False)
    # Mean 2, variance 8/3.
    torch.testing.assert_close(got, column(-2.0, 0.0, 2.0) / (8 / 3 + EPS) ** 0.5)
    assert norm.mean.item() == pytest.approx(0.02) and norm.var.item() == pytest.approx(1 + 0.01 * 5 / 3)


def test_corrected_values_are_those_of_the_moving_averages():
    """Within the bounds r and d undo the batch's own statistics."""
    norm = BatchRenorm(2, 3, warm_up=0)
    with torch.no_grad():
        norm.mean.fill_(0.5)
        norm.var.fill_(2.0)
    x = 0.5 + torch.randn(2, 64, 3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(norm(x, running=False), (x - 0.5) / (2.0 + EPS) ** 0.5)


def test_the_correction_is_bounded():
    norm = BatchRenorm(1, 1, warm_up=0, max_r=3.0, max_d=5.0)
    got = norm(column(1000.0, 1200.0), running=False)
    unit = 100.0 / (100.0**2 + EPS) ** 0.5
    torch.testing.assert_close(got, column(-3 * unit + 5, 3 * unit + 5))


def test_no_gradient_goes_through_the_correction():
    norm, x = BatchRenorm(1, 1, warm_up=0), column(0.0, 2.0, 4.0).requires_grad_()
    norm(x, running=False).sum().backward()
    # The batch's mean is subtracted, so a sum over the batch has no gradient, whatever d is.
    torch.testing.assert_close(x.grad, torch.zeros_like(x), atol=1e-6, rtol=0)


def test_running_statistics_are_read_and_not_written():
    norm = BatchRenorm(1, 1, warm_up=5)
    with torch.no_grad():
        norm.mean.fill_(1.0)
        norm.var.fill_(4.0)
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    got = norm(column(3.0), running=True)
    assert got.item() == pytest.approx(2.0 / (4.0 + EPS) ** 0.5)
    assert all(torch.equal(before[name], value) for name, value in norm.state_dict().items())


def test_networks_do_not_mix():
    norm = BatchRenorm(2, 1, warm_up=0)
    x = torch.randn(2, 16, 1)
    alone = BatchRenorm(1, 1, warm_up=0)
    torch.testing.assert_close(norm(x, running=False)[:1], alone(x[:1], running=False))
