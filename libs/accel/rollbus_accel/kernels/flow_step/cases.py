"""Cases of flow steps: every sampler, one deviation per row and per element, elements that do not count."""

from __future__ import annotations

import math

import torch

from rollbus_accel.kernels.benches import Bench
from rollbus_accel.kernels.cases import Arguments, Case, generator
from rollbus_accel.kernels.flow_step import flow_log_prob, flow_step, samplers

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 3e-2}


def rows(num_rows: int, num_columns: int, dtype: torch.dtype, sampler: str = "sde") -> Arguments:
    """Random states, times in eighths (the first 1), and seeds of all 64 bits."""
    source = generator(num_rows + num_columns)
    x, velocity = torch.randn(2, num_rows, num_columns, generator=source)
    time = torch.randint(2, 9, (num_rows,), generator=source) / 8.0
    time[0] = 1.0
    more = {"std": 0.08 + 0.08 * torch.rand(x.shape, generator=source)} if sampler == "learned" else {}
    return {
        "x": x.to(dtype),
        "velocity": velocity.to(dtype),
        "time": time,
        "weights": getattr(samplers, sampler)(time, torch.full_like(time, 0.125), **more),
        "counts": torch.rand(x.shape, generator=source) < 0.8,
        "seeds": torch.randint(-(1 << 63), (1 << 63) - 1, (num_rows,), generator=source),
    }


def scored(num_rows: int, num_columns: int, dtype: torch.dtype, sampler: str = "sde") -> Arguments:
    """Arguments of `flow_log_prob`: a step near the mean."""
    made = rows(num_rows, num_columns, dtype, sampler)
    del made["seeds"]
    near = made["x"] + 0.1 * torch.randn(made["x"].shape, generator=generator(1)).to(dtype)
    return made | {"following": near}


def _poison(arguments: Arguments) -> None:
    for name in ("x", "velocity", "following"):
        arguments[name][~arguments["counts"]] = torch.nan


def _sampled(num_rows: int, num_columns: int, sampler: str) -> Case:
    name = f"{sampler}-{num_rows}x{num_columns}"
    return Case(name, lambda dtype: rows(num_rows, num_columns, dtype, sampler))


def _scored(num_rows: int, num_columns: int, sampler: str) -> Case:
    return Case(
        f"score-{sampler}-{num_rows}x{num_columns}",
        lambda dtype: scored(num_rows, num_columns, dtype, sampler),
        gradients=("velocity",),
        poison=_poison,
        function="flow_log_prob",
    )


CASES = [
    _sampled(1, 1, "sde"),
    _scored(3, 7, "sde"),
    _sampled(5, 9, "ode"),
    _sampled(40, 6, "cps"),
    _sampled(3, 301, "learned"),
    _scored(1, 1, "cps"),
    _scored(9, 21, "learned"),
]


def _refused(**changed: torch.Tensor) -> Case:
    return Case("-".join(changed), lambda dtype: rows(4, 3, dtype) | changed)


REFUSED = [
    _refused(x=torch.zeros(4)),
    _refused(velocity=torch.zeros(4, 1)),
    _refused(time=torch.zeros(4, 1)),
    _refused(counts=torch.zeros(4, 3)),
    _refused(seeds=torch.zeros(3, dtype=torch.int64)),
    Case(
        "following",
        lambda dtype: scored(4, 3, dtype) | {"following": torch.zeros(3)},
        function="flow_log_prob",
    ),
]


def straight_flow_arrives() -> None:
    """With the velocity noise - data, Euler's steps reach the data, whatever their number."""
    data, x = torch.randn(2, 6, 5, generator=generator(2))
    velocity, seeds = x - data, torch.arange(6)
    for step in range(8):
        time = torch.full((6,), 1.0 - step / 8)
        x, log_prob = flow_step(x, velocity, time, samplers.ode(time, torch.full((6,), 0.125)), seeds)
        assert not log_prob.any()
    torch.testing.assert_close(x, data, rtol=1e-5, atol=1e-5)


def what_is_sampled_scores_the_same() -> None:
    """The log-prob of sampling is that of scoring the sample."""
    for sampler in ("sde", "cps", "learned"):
        made = rows(10, 13, torch.float32, sampler)
        following, log_prob = flow_step(**made)
        del made["seeds"]
        torch.testing.assert_close(flow_log_prob(following=following, **made), log_prob, rtol=1e-3, atol=1e-3)


def sde_by_hand() -> None:
    """x = 1, v = 2, t = 0.5, dt = 0.25, level 0.5: s = 0.5, mean 0.375, std 0.25; z = 1 at 0.625."""
    time = torch.tensor([0.5])
    weights = samplers.sde(time, torch.tensor([0.25]), 0.5)
    # x_data = 0, x_noise = 2; noise weight 0.25 - 0.25 * 0.25 / 1 = 0.1875
    one = torch.ones(1, 1)
    log_prob = flow_log_prob(one, torch.tensor([[0.375 + 0.25]]), 2.0 * one, time, weights)
    wanted = -0.5 - math.log(0.25) - 0.5 * math.log(2.0 * math.pi)
    torch.testing.assert_close(log_prob, torch.tensor([wanted]), rtol=1e-5, atol=1e-5)


def deviation_has_its_gradient() -> None:
    """Of one deviation per row: sum of (z^2 - 1) / std over its elements."""
    time = torch.full((3,), 0.5)
    x, following = torch.randn(2, 3, 4, generator=generator(3))
    std = torch.tensor([0.5, 1.0, 2.0], requires_grad=True)
    weights = samplers.learned(time, torch.full((3,), 0.25), std)
    log_prob = flow_log_prob(x, following, torch.zeros(3, 4), time, weights)
    (slope,) = torch.autograd.grad(log_prob.sum(), std)
    z = (following - x) / std.detach()[:, None]
    torch.testing.assert_close(slope, (z**2 - 1.0).sum(1) / std.detach(), rtol=1e-4, atol=1e-4)


IDENTITIES = [
    straight_flow_arrives,
    what_is_sampled_scores_the_same,
    sde_by_hand,
    deviation_has_its_gradient,
]


def _bench(num_rows: int, num_columns: int, quick: bool = False) -> Bench:
    size = num_rows * num_columns
    return Bench(
        f"{num_rows}x{num_columns}",
        lambda dtype: rows(num_rows, num_columns, dtype),
        num_bytes=lambda itemsize: size * (2 * itemsize + 5) + num_rows * 28,
        quick=quick,
    )


BENCH = [_bench(1 << 15, 350), _bench(256, 70, quick=True)]
