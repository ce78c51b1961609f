"""Cases of the discounted return."""

from __future__ import annotations

import torch

from rollbus_accel.kernels.benches import Bench
from rollbus_accel.kernels.cases import SINGLE, Arguments, Case, generator
from rollbus_accel.kernels.discounted_return import discounted_return

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-5}


def rewards(*shape: int, dtype: torch.dtype, ends: bool = True) -> Arguments:
    """Random arguments [*shape]; one step in eight is masked, one in ten done."""
    source = generator(sum(shape))
    made: Arguments = {
        "reward": torch.randn(shape, generator=source).to(dtype),
        "valid": torch.rand(shape, generator=source) < 0.875,
        "discount": 0.9,
    }
    return made | {"done": torch.rand(shape, generator=source) < 0.1} if ends else made


def _poison(arguments: Arguments) -> None:
    arguments["reward"][~arguments["valid"]] = torch.nan


def _sized(*shape: int, ends: bool = True) -> Case:
    name = "x".join(map(str, shape)) + ("" if ends else "-endless")
    dtypes = SINGLE if shape[0] > 10 else tuple(TOLERANCE)
    return Case(name, lambda dtype: rewards(*shape, dtype=dtype, ends=ends), poison=_poison, dtypes=dtypes)


def _all_masked(dtype: torch.dtype) -> Arguments:
    return rewards(5, 3, dtype=dtype) | {"valid": torch.zeros(5, 3, dtype=torch.bool)}


CASES = [_sized(1, 1), _sized(7), _sized(5, 2, 3), _sized(35, 33, ends=False), _sized(70, 2)]
CASES.append(Case("all-masked", _all_masked, poison=_poison))


def _refused(**changed: torch.Tensor) -> Case:
    return Case("-".join(changed), lambda dtype: rewards(4, 3, dtype=dtype) | changed)


REFUSED = [
    _refused(valid=torch.ones(4, 1, dtype=torch.bool)),
    _refused(done=torch.zeros(4, 3)),
    _refused(reward=torch.zeros(4, 3, dtype=torch.int64)),
]


def undiscounted_is_a_cumulative_sum() -> None:
    """Reversed, and of what is not masked."""
    made = rewards(33, 5, dtype=torch.float32, ends=False) | {"discount": 1.0}
    kept = torch.where(made["valid"], made["reward"], 0.0)
    wanted = torch.where(made["valid"], kept.flip(0).cumsum(0).flip(0), 0.0)
    torch.testing.assert_close(discounted_return(**made), wanted, rtol=1e-5, atol=1e-5)


def by_hand() -> None:
    """Rewards 1 to 4 at discount 0.5; the third is masked; then the same with an end at the second."""
    reward = torch.tensor([1.0, 2.0, 3.0, 4.0])
    valid = torch.tensor([True, True, False, True])
    torch.testing.assert_close(discounted_return(reward, valid, 0.5), torch.tensor([2.5, 3.0, 0.0, 4.0]))
    done = torch.tensor([False, True, False, False])
    torch.testing.assert_close(
        discounted_return(reward, valid, 0.5, done), torch.tensor([2.0, 2.0, 0.0, 4.0])
    )


IDENTITIES = [undiscounted_is_a_cumulative_sum, by_hand]


def _bench(steps: int, rows: int, quick: bool = False) -> Bench:
    size = steps * rows
    return Bench(
        f"{steps}x{rows}",
        lambda dtype: rewards(steps, rows, dtype=dtype),
        num_bytes=lambda itemsize: size * (itemsize + 2 + 4),
        dtypes=(torch.float32,),
        quick=quick,
    )


BENCH = [_bench(512, 16384), _bench(128, 4096, quick=True)]
