"""Every op of rollbus_accel.kernels on the device: right first, then how fast."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from gpu.clock import Clock
from gpu.failures import FAILURES, first_line
from gpu.limits import Limits
from rollbus_accel.kernels import base
from rollbus_accel.kernels.benches import Bench
from rollbus_accel.kernels.cases import Arguments, Case

#: Cases per op with quick sizes.
QUICK_CASES = 3


@dataclass(frozen=True)
class Correctness:
    """The cases of one op, in the flavour that the device gets, against the reference on the CPU."""

    op: str
    flavour: str
    num_cases: int
    #: Case, dtype and difference of each that is not within the op's tolerance.
    failures: list[str]


@dataclass(frozen=True)
class Timing:
    """One size of one op in one dtype."""

    op: str
    flavour: str
    size: str
    dtype: str
    time_ms: float
    #: The reference on the same device.
    reference_ms: float
    #: Least bytes over time, as a part of the copy bandwidth.
    copy_fraction: float
    #: Matrix operations over time, as a part of the rate of matmul in this dtype; None: has none.
    matmul_fraction: float | None
    #: Forward and backward; None: no gradients.
    train_ms: float | None
    train_reference_ms: float | None


def check(op: str, clock: Clock) -> Correctness:
    """Run the op's cases, with NaN wherever they must not look, and their gradients."""
    cases = _cases(op)
    chosen = cases.CASES[:QUICK_CASES] if clock.quick else cases.CASES
    failures, num = [], 0
    for case in chosen:
        for dtype in case.dtypes:
            num += 1
            try:
                _compare(op, case, dtype, clock.device, cases.TOLERANCE[dtype])
            except FAILURES as error:
                failures.append(f"{case.name} {dtype}: {first_line(error)}")
    return Correctness(op, base.choose(op, _kind(clock)), num, failures)


def _compare(op: str, case: Case, dtype: torch.dtype, device: str, tolerance: float) -> None:
    given, wanted = case.make(dtype), case.make(dtype)
    if case.poison:
        case.poison(given)
    given = moved(given, device)
    function = _function(op, case.function)
    found = _run(function, given, case.gradients)
    with base.use("reference"):
        right = _run(function, wanted, case.gradients)
    assert len(found) == len(right), f"{len(found)} results instead of {len(right)}"
    for one, other in zip(found, right):
        torch.testing.assert_close(one.cpu(), other, rtol=tolerance, atol=tolerance)


def _run(
    function: Callable[..., Any], arguments: Arguments, gradients: tuple[str, ...]
) -> list[torch.Tensor]:
    """Results, then gradients of one random combination of them."""
    for name in gradients:
        arguments[name].requires_grad_()
    result = function(**arguments)
    outputs = [result] if isinstance(result, torch.Tensor) else list(result)
    carrying = [out for out in outputs if out.requires_grad]
    if not (gradients and carrying):
        return [out.detach() for out in outputs]
    source = torch.Generator().manual_seed(3)
    weights = [torch.randn(out.shape, generator=source).to(out) for out in carrying]
    found = torch.autograd.grad(carrying, [arguments[name] for name in gradients], weights)
    return [*(out.detach() for out in outputs), *found]


def measure(op: str, bench: Bench, dtype: torch.dtype, clock: Clock, limits: Limits) -> Timing:
    """Time one size, the reference beside it."""
    flavour = base.choose(op, _kind(clock))
    arguments = moved(bench.make(dtype), clock.device)
    function = _function(op, bench.function)
    with torch.no_grad():
        forward = clock.seconds(_beside(lambda: function(**arguments)))
    train: dict[str, float] = {}
    if bench.gradients:
        train = clock.seconds(_beside(lambda: _run(function, arguments, bench.gradients)))
    seconds, name = forward["ours"], str(dtype)[6:]
    rate = limits.matmul_flops_per_s.get(name)
    return Timing(
        op, flavour, bench.name, name,
        time_ms=1e3 * seconds,
        reference_ms=1e3 * forward["reference"],
        copy_fraction=bench.num_bytes(dtype.itemsize) / seconds / limits.copy_bytes_per_s,
        matmul_fraction=bench.num_flops / seconds / rate if bench.num_flops and rate else None,
        train_ms=1e3 * train["ours"] if train else None,
        train_reference_ms=1e3 * train["reference"] if train else None,
    )  # fmt: skip


def benches(op: str, clock: Clock) -> list[tuple[Bench, torch.dtype]]:
    """The sizes worth timing on this device."""
    listed = getattr(_cases(op), "BENCH", [])
    return [(bench, dtype) for bench in listed if bench.quick == clock.quick for dtype in bench.dtypes]


def moved(value: Any, device: str) -> Any:
    """``value`` with its tensors on ``device``."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {name: moved(each, device) for name, each in value.items()}
    if isinstance(value, list):
        return [moved(each, device) for each in value]
    return value


def _beside(call: Callable[[], object]) -> dict[str, Callable[[], object]]:
    def reference() -> object:
        with base.use("reference"):
            return call()

    return {"ours": call, "reference": reference}


def _cases(op: str) -> Any:
    return importlib.import_module(f"{base.PACKAGE}.{op}.cases")


def _function(op: str, name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(importlib.import_module(f"{base.PACKAGE}.{op}"), name or op)
    return found


def _kind(clock: Clock) -> str:
    return clock.device.partition(":")[0]
