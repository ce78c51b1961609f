"""Cases of V-trace: those of GAE with ratios, and numbers by hand."""

from __future__ import annotations

import torch

from rollbus_accel.kernels.benches import Bench
from rollbus_accel.kernels.cases import SINGLE, Arguments, Case, generator
from rollbus_accel.kernels.gae import gae
from rollbus_accel.kernels.gae.cases import poison as poison_trajectory
from rollbus_accel.kernels.gae.cases import trajectory
from rollbus_accel.kernels.vtrace import vtrace

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-5}


def _arguments(steps: int, rows: int, dtype: torch.dtype, **limits: float) -> Arguments:
    log_ratio = torch.randn(steps, rows, generator=generator(steps + rows)).to(dtype)
    return {"log_ratio": log_ratio, **trajectory(steps, rows, dtype), "lam": 0.95, **limits}


def _poison(arguments: Arguments) -> None:
    poison_trajectory(arguments)
    arguments["log_ratio"][~arguments["valid"]] = torch.nan


def _sized(steps: int, rows: int, **limits: float) -> Case:
    name = "-".join([f"{steps}x{rows}", *limits])
    dtypes = SINGLE if steps > 10 else tuple(TOLERANCE)
    return Case(name, lambda dtype: _arguments(steps, rows, dtype, **limits), poison=_poison, dtypes=dtypes)


def _all_masked(dtype: torch.dtype) -> Arguments:
    made = _arguments(5, 3, dtype)
    made["valid"][:] = False
    return made


def _far_ratios(dtype: torch.dtype) -> Arguments:
    made = _arguments(6, 2, dtype)
    return made | {"log_ratio": 1000.0 * made["log_ratio"]}


CASES = [_sized(*size) for size in ((1, 1), (7, 3), (35, 33), (70, 2))]
CASES += [
    _sized(10, 5, rho_clip=2.0, c_clip=1.5),
    Case("all-masked", _all_masked, poison=_poison),
    Case("far-ratios", _far_ratios, poison=_poison, dtypes=SINGLE),
]


def _refused(**changed: torch.Tensor) -> Case:
    return Case("-".join(changed), lambda dtype: _arguments(4, 3, dtype) | changed)


REFUSED = [
    _refused(log_ratio=torch.zeros(4)),
    _refused(log_ratio=torch.zeros(4, 3, dtype=torch.int32)),
    _refused(next_value=torch.zeros(4, 1)),
    _refused(terminated=torch.zeros(4, 3)),
]


def on_policy_targets_are_those_of_gae() -> None:
    """With rho = 1, vs - V is the generalised advantage."""
    made = trajectory(40, 7, torch.float32)
    made["next_value"][:-1] = torch.where(made["done"][:-1], made["next_value"][:-1], made["value"][1:])
    _, target = vtrace(torch.zeros(40, 7), **made, lam=0.9)
    torch.testing.assert_close(target, gae(**made, lam=0.9)[1], rtol=1e-5, atol=1e-5)


def never_taken_actions_teach_nothing() -> None:
    """With rho = 0, vs is V and the advantage is 0."""
    made = trajectory(12, 5, torch.float32)
    advantage, target = vtrace(torch.full((12, 5), -1000.0), **made, lam=0.9)
    torch.testing.assert_close(target, torch.where(made["valid"], made["value"], 0.0))
    torch.testing.assert_close(advantage, torch.zeros(12, 5))


def by_hand() -> None:
    """The trajectory of gae's hand-made case with rho = 2, 0.5, 1, 1 (the first is clipped)."""
    column = torch.ones(4, 1)
    done = torch.tensor([[False], [True], [False], [False]])
    never = torch.zeros(4, 1, dtype=torch.bool)
    following = torch.tensor([[0.5], [2.0], [0.5], [0.5]])
    log_ratio = torch.tensor([[2.0], [0.5], [1.0], [1.0]]).log()
    advantage, target = vtrace(
        log_ratio, column, 0.9 * column, 0.5 * column, following, never, done, ~never, lam=0.95
    )
    torch.testing.assert_close(target[:, 0], torch.tensor([2.43325, 1.65, 2.26225, 1.45]))
    torch.testing.assert_close(advantage[:, 0], torch.tensor([1.985, 1.15, 1.805, 0.95]))


IDENTITIES = [on_policy_targets_are_those_of_gae, never_taken_actions_teach_nothing, by_hand]


def _bench(steps: int, rows: int, quick: bool = False) -> Bench:
    size = steps * rows
    return Bench(
        f"{steps}x{rows}",
        lambda dtype: _arguments(steps, rows, dtype),
        num_bytes=lambda itemsize: size * (5 * itemsize + 3 + 8),
        dtypes=(torch.float32,),
        quick=quick,
    )


BENCH = [_bench(512, 16384), _bench(128, 4096, quick=True)]
