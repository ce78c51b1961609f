"""Cases of GAE: odd sizes, ends everywhere, rows of several lengths, numbers by hand."""

from __future__ import annotations

import torch

from rollbus_accel.kernels.benches import Bench
from rollbus_accel.kernels.cases import SINGLE, Arguments, Case, generator
from rollbus_accel.kernels.gae import gae

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-5}
DTYPES = tuple(TOLERANCE)


def trajectory(steps: int, rows: int, dtype: torch.dtype, ends: float = 0.2) -> Arguments:
    """Random columns [steps, rows] of every argument but ``lam``; rows have several lengths."""
    source = generator(steps * 1000 + rows)

    def normal() -> torch.Tensor:
        return torch.randn(steps, rows, generator=source).to(dtype)

    def chance(p: float) -> torch.Tensor:
        return torch.rand(steps, rows, generator=source) < p

    terminated = chance(ends / 2)
    length = torch.randint(1, steps + 1, (rows,), generator=source)
    return {
        "reward": normal(),
        "discount": (0.9 + 0.1 * torch.rand(steps, rows, generator=source)).to(dtype),
        "value": normal(),
        "next_value": normal(),
        "terminated": terminated,
        "done": terminated | chance(ends / 2),
        "valid": (torch.arange(steps)[:, None] < length) & ~chance(0.05),
    }


def poison(arguments: Arguments) -> None:
    """NaN in every number that is not valid, and in what would follow a termination."""
    valid = arguments["valid"]
    for name in ("reward", "discount", "value", "next_value"):
        arguments[name][~valid] = torch.nan
    arguments["next_value"][arguments["terminated"]] = torch.nan


def _sized(steps: int, rows: int) -> Case:
    def make(dtype: torch.dtype) -> Arguments:
        return trajectory(steps, rows, dtype) | {"lam": 0.95}

    return Case(f"{steps}x{rows}", make, poison=poison, dtypes=SINGLE if steps > 10 else DTYPES)


def _all_masked(dtype: torch.dtype) -> Arguments:
    made = trajectory(5, 3, dtype) | {"lam": 0.9}
    made["valid"][:] = False
    return made


CASES = [_sized(*size) for size in ((1, 1), (7, 3), (35, 33), (70, 2))]
CASES.append(Case("all-masked", _all_masked, poison=poison))


def _refused(**changed: torch.Tensor) -> Case:
    return Case(
        "-".join(changed),
        lambda dtype: trajectory(4, 3, dtype) | {"lam": 0.9} | changed,
        dtypes=(torch.float32,),
    )


REFUSED = [
    _refused(value=torch.zeros(5, 3)),
    _refused(valid=torch.ones(4, 1, dtype=torch.bool)),
    _refused(done=torch.zeros(4, 3)),
    _refused(reward=torch.zeros(4, 3, dtype=torch.int64)),
]


def lambda_one_is_return_minus_value() -> None:
    """Known since the definition: with lambda 1 the values in between cancel out."""
    for steps in (1, 2, 63, 64, 65):
        made = trajectory(steps, 3, torch.float32, ends=0.0)
        made["valid"][:] = True
        made["next_value"][:-1] = made["value"][1:]
        returns = made["next_value"][-1].double()
        advantage, target = gae(**made, lam=1.0)
        for t in reversed(range(steps)):
            returns = made["reward"][t] + made["discount"][t].double() * returns
            torch.testing.assert_close(target[t].double(), returns, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(advantage, target - made["value"], rtol=1e-4, atol=1e-4)


def lambda_zero_is_the_temporal_difference() -> None:
    """One step and no more."""
    made = trajectory(9, 4, torch.float32, ends=0.0)
    made["valid"][:] = True
    advantage, _ = gae(**made, lam=0.0)
    delta = made["reward"] + made["discount"] * made["next_value"] - made["value"]
    torch.testing.assert_close(advantage, delta)


def truncation_by_hand() -> None:
    """Reward 1, value 0.5, discount 0.9, lambda 0.95; truncated after the second step, final value 2."""
    column = torch.ones(4, 1)
    done = torch.tensor([[False], [True], [False], [False]])
    never = torch.zeros(4, 1, dtype=torch.bool)
    following = torch.tensor([[0.5], [2.0], [0.5], [0.5]])
    advantage, target = gae(column, 0.9 * column, 0.5 * column, following, never, done, ~never, lam=0.95)
    torch.testing.assert_close(advantage[:, 0], torch.tensor([2.9165, 2.3, 1.76225, 0.95]))
    torch.testing.assert_close(target, advantage + 0.5)


IDENTITIES = [lambda_one_is_return_minus_value, lambda_zero_is_the_temporal_difference, truncation_by_hand]


def _bench(steps: int, rows: int, quick: bool = False) -> Bench:
    size = steps * rows
    return Bench(
        f"{steps}x{rows}",
        lambda dtype: trajectory(steps, rows, dtype) | {"lam": 0.95},
        num_bytes=lambda itemsize: size * (4 * itemsize + 3 + 8),
        dtypes=(torch.float32,),
        quick=quick,
    )


BENCH = [_bench(512, 16384), _bench(128, 4096, quick=True)]
