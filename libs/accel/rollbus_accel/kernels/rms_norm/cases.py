"""Cases of rms_norm: one element, odd sizes, rows of zeros, more rows than programs."""

from __future__ import annotations

import torch
from torch.nn import functional

from rollbus_accel.kernels.benches import Bench
from rollbus_accel.kernels.cases import Arguments, Case, generator
from rollbus_accel.kernels.rms_norm import rms_norm

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}


def rows(num_rows: int, size: int, dtype: torch.dtype) -> Arguments:
    """Random ``x`` [num_rows, size] and ``weight``."""
    source = generator(num_rows * 1000 + size)
    return {
        "x": torch.randn(num_rows, size, generator=source).to(dtype),
        "weight": (1 + 0.1 * torch.randn(size, generator=source)).to(dtype),
        "eps": 1e-6,
    }


def _sized(num_rows: int, size: int) -> Case:
    return Case(f"{num_rows}x{size}", lambda dtype: rows(num_rows, size, dtype), gradients=("x", "weight"))


def _images(dtype: torch.dtype) -> Arguments:
    made = rows(2 * 3 * 5, 17, dtype)
    return made | {"x": made["x"].view(2, 3, 5, 17)}


def _zeros(dtype: torch.dtype) -> Arguments:
    made = rows(3, 8, dtype)
    made["x"][1] = 0.0
    return made | {"eps": 1e-3}


CASES = [_sized(*size) for size in ((1, 1), (5, 7), (33, 64), (3, 1000), (300, 5))]
CASES += [
    Case("four-dimensions", _images, gradients=("x", "weight")),
    Case("a-row-of-zeros", _zeros, gradients=("x", "weight")),
]


def _refused(name: str, **changed: object) -> Case:
    return Case(name, lambda dtype: rows(4, 3, dtype) | changed, dtypes=(torch.float32,))


REFUSED = [
    _refused("weight-of-another-size", weight=torch.ones(4)),
    _refused("weight-per-row", weight=torch.ones(4, 3)),
    _refused("integers", x=torch.ones(4, 3, dtype=torch.int64)),
    _refused("no-dimension", x=torch.tensor(1.0)),
]


def rows_have_length_root_of_size() -> None:
    """With weight 1, whatever the length before."""
    x = 5 * rows(6, 33, torch.float32)["x"]
    length = rms_norm(x, torch.ones(33), 0.0).norm(dim=-1)
    torch.testing.assert_close(length, torch.full((6,), 33**0.5))


def equals_torch() -> None:
    """torch has the same function."""
    made = rows(6, 33, torch.float32)
    wanted = functional.rms_norm(made["x"], (33,), made["weight"], 1e-6)
    torch.testing.assert_close(rms_norm(**made), wanted)


def by_hand() -> None:
    """3 and 4: the mean square is 12.5."""
    found = rms_norm(torch.tensor([[3.0, 4.0]]), torch.tensor([1.0, 2.0]), 0.0)
    torch.testing.assert_close(found, torch.tensor([[3.0, 8.0]]) / 12.5**0.5)


def gradient_is_orthogonal_to_x() -> None:
    """Scaling x changes nothing when eps is 0, so the gradient has no part along x."""
    made = rows(6, 33, torch.float32)
    x = made["x"].requires_grad_()
    (rms_norm(x, made["weight"], 0.0) ** 3).sum().backward()
    assert x.grad is not None and x.grad.abs().max() > 0.1
    torch.testing.assert_close((x.grad * x).sum(-1), torch.zeros(6), rtol=0, atol=1e-4)


IDENTITIES = [rows_have_length_root_of_size, equals_torch, by_hand, gradient_is_orthogonal_to_x]


def _bench(num_rows: int, size: int, quick: bool = False) -> Bench:
    return Bench(
        f"{num_rows}x{size}",
        lambda dtype: rows(num_rows, size, dtype),
        num_bytes=lambda itemsize: 2 * num_rows * size * itemsize,
        quick=quick,
        gradients=("x", "weight"),
    )


BENCH = [_bench(16384, 4096), _bench(256, 1024, quick=True)]
