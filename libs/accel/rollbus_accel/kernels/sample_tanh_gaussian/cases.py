"""Cases of the squashed Gaussian."""

from __future__ import annotations

import torch

from rollbus_accel.kernels.benches import Bench
from rollbus_accel.kernels.cases import Arguments, Case, generator
from rollbus_accel.kernels.sample_tanh_gaussian import sample_tanh_gaussian

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}


def rows(num_rows: int, num_columns: int, dtype: torch.dtype) -> Arguments:
    """Random parameters and seeds of all 64 bits."""
    source = generator(num_rows + num_columns)
    mean, log_std = torch.randn(2, num_rows, num_columns, generator=source)
    seeds = torch.randint(-(1 << 63), (1 << 63) - 1, (num_rows,), generator=source)
    return {"mean": mean.to(dtype), "log_std": (log_std - 1.0).to(dtype), "seeds": seeds}


def _sized(num_rows: int, num_columns: int) -> Case:
    return Case(
        f"{num_rows}x{num_columns}",
        lambda dtype: rows(num_rows, num_columns, dtype),
        gradients=("mean", "log_std"),
    )


CASES = [_sized(1, 1), _sized(5, 3), _sized(40, 6), _sized(3, 301)]


def _refused(**changed: torch.Tensor) -> Case:
    return Case("-".join(changed), lambda dtype: rows(4, 3, dtype) | changed)


REFUSED = [
    _refused(mean=torch.zeros(4)),
    _refused(log_std=torch.zeros(3)),
    _refused(mean=torch.zeros(4, 3, dtype=torch.int64)),
    _refused(seeds=torch.zeros(3, dtype=torch.int64)),
    _refused(seeds=torch.zeros(4)),
]


def noise_is_normal() -> None:
    """Mean 0, variance 1 and no correlation of neighbours, within 5 standard errors of 24576 samples."""
    num, columns = 4096, 6
    zeros = torch.zeros(num, columns)
    _, noise, _ = sample_tanh_gaussian(zeros, zeros, torch.arange(num))
    error = 5.0 / (num * columns) ** 0.5
    assert abs(noise.mean()) < error and abs(noise.var() - 1.0) < 1.5 * error
    for one, other in ((0, 1), (0, 2), (2, 4), (1, 3)):
        assert abs((noise[:, one] * noise[:, other]).mean()) < 5.0 / num**0.5
    assert abs((noise[1:] * noise[:-1]).mean()) < error


def log_prob_is_that_of_the_transformed_distribution() -> None:
    """torch.distributions, at the sampled values."""
    made = rows(20, 4, torch.float32)
    action, raw, log_prob = sample_tanh_gaussian(**made)
    base = torch.distributions.Normal(made["mean"].double(), made["log_std"].double().exp())
    squash = torch.distributions.transforms.TanhTransform()
    wanted = base.log_prob(raw.double()) - squash.log_abs_det_jacobian(raw.double(), action.double())
    torch.testing.assert_close(log_prob.double(), wanted.sum(1), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(action, raw.tanh(), rtol=1e-5, atol=1e-6)


def far_means_stay_finite() -> None:
    """tanh is 1 there, and the log-prob still falls by 2 |u| (less 2 log 2)."""
    mean = torch.tensor([[40.0], [-40.0]])
    action, raw, log_prob = sample_tanh_gaussian(mean, torch.full((2, 1), -10.0), torch.arange(2))
    torch.testing.assert_close(action, mean.sign())
    assert log_prob.isfinite().all()
    noise = (raw - mean) * torch.tensor(10.0).exp()
    wanted = -0.5 * noise**2 + 10.0 - 0.9189385 + 2.0 * raw.abs() - 2.0 * torch.log(torch.tensor(2.0))
    torch.testing.assert_close(log_prob, wanted[:, 0], rtol=2e-2, atol=2e-2)


def rows_do_not_depend_on_their_neighbours() -> None:
    """A row alone gives what it gives in a batch."""
    made = rows(9, 7, torch.float32)
    whole = sample_tanh_gaussian(**made)
    alone = sample_tanh_gaussian(**{name: x[4:5] for name, x in made.items()})
    for one, other in zip(alone, whole):
        torch.testing.assert_close(one[0], other[4])


IDENTITIES = [
    noise_is_normal,
    log_prob_is_that_of_the_transformed_distribution,
    far_means_stay_finite,
    rows_do_not_depend_on_their_neighbours,
]


def _bench(num_rows: int, num_columns: int, quick: bool = False) -> Bench:
    size = num_rows * num_columns
    return Bench(
        f"{num_rows}x{num_columns}",
        lambda dtype: rows(num_rows, num_columns, dtype),
        num_bytes=lambda itemsize: size * (2 * itemsize + 8) + num_rows * 12,
        quick=quick,
    )


BENCH = [_bench(1 << 18, 32), _bench(4096, 8, quick=True)]
