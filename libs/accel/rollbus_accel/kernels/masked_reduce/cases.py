"""Cases of masked sums."""

from __future__ import annotations

import torch

from rollbus_accel.kernels.benches import Bench
from rollbus_accel.kernels.cases import Arguments, Case, generator
from rollbus_accel.kernels.masked_reduce import masked_reduce

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}


def numbers(*shape: int, dtype: torch.dtype, masked: float = 0.2) -> Arguments:
    """Random numbers far from 0, of which the part ``masked`` does not count."""
    source = generator(sum(shape))
    x = 5.0 + torch.randn(shape, generator=source)
    return {"x": x.to(dtype), "mask": torch.rand(shape, generator=source) >= masked}


def _poison(arguments: Arguments) -> None:
    arguments["x"][~arguments["mask"]] = torch.nan


def _sized(*shape: int, masked: float = 0.2) -> Case:
    name = "x".join(map(str, shape)) + f"-{masked}"
    return Case(
        name, lambda dtype: numbers(*shape, dtype=dtype, masked=masked), gradients=("x",), poison=_poison
    )


CASES = [_sized(1, masked=0.0), _sized(7, 3), _sized(13, 5, 3, masked=0.9), _sized(6001)]
CASES.append(Case("all-masked", lambda dtype: numbers(33, dtype=dtype, masked=1.1), poison=_poison))


def _refused(**changed: torch.Tensor) -> Case:
    return Case("-".join(changed), lambda dtype: numbers(4, dtype=dtype) | changed)


REFUSED = [
    _refused(mask=torch.ones(4, 1, dtype=torch.bool)),
    _refused(mask=torch.ones(4)),
    _refused(x=torch.ones(4, dtype=torch.int64)),
]


def variance_is_that_of_torch() -> None:
    """Over what is selected, far from 0, where a sum of squares would lose its digits."""
    made = numbers(5000, dtype=torch.float32)
    made["x"] += 1000.0
    total, deviation, count = masked_reduce(**made)
    kept = made["x"][made["mask"]].double()
    assert int(count) == len(kept)
    torch.testing.assert_close((total / count).double(), kept.mean(), rtol=1e-6, atol=0)
    torch.testing.assert_close((deviation / count).double(), kept.var(correction=0), rtol=1e-3, atol=0)


def by_hand() -> None:
    """1, 3 and 5 count: 9, 4 + 0 + 4, 3."""
    x, mask = torch.tensor([1.0, 100.0, 3.0, 5.0]), torch.tensor([True, False, True, True])
    total, deviation, count = masked_reduce(x, mask)
    assert (float(total), float(deviation), int(count)) == (9.0, 8.0, 3)


IDENTITIES = [variance_is_that_of_torch, by_hand]


def _bench(num: int, quick: bool = False) -> Bench:
    return Bench(
        str(num),
        lambda dtype: numbers(num, dtype=dtype),
        num_bytes=lambda itemsize: num * (itemsize + 1),
        quick=quick,
    )


BENCH = [_bench(1 << 26), _bench(1 << 16, quick=True)]
