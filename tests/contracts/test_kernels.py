"""Every op of rollbus_accel.kernels, in every flavour that runs here, against its reference and its cases.

An op is a folder: a new one is tested the day it appears. Triton kernels run in Triton's interpreter, which
must be asked for before triton is imported; so this file runs itself once more, in a process that asks.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from rollbus_accel.kernels import base
from rollbus_accel.kernels.cases import Arguments, Case

OPS = base.ops()
FLAVOURS = ("triton",) if base.interpreted() else ("numba", "reference")
CASES = {op: importlib.import_module(f"{base.PACKAGE}.{op}.cases") for op in OPS}
FAST = [(op, flavour) for op in OPS for flavour in FLAVOURS if not base.declines(op, flavour, "cpu")]


@dataclass
class Run:
    """One case of one op in one dtype under one flavour."""

    op: str
    flavour: str
    case: Case
    dtype: torch.dtype

    def arguments(self, poisoned: bool = False, gradients: bool = False) -> Arguments:
        made = self.case.make(self.dtype)
        if poisoned and self.case.poison:
            self.case.poison(made)
        for name in self.case.gradients if gradients else ():
            made[name].requires_grad_()
        return made

    def call(self, arguments: Arguments, flavour: str = "") -> list[torch.Tensor]:
        function = getattr(
            importlib.import_module(f"{base.PACKAGE}.{self.op}"), self.case.function or self.op
        )
        with base.use(flavour or self.flavour):
            return flat(function(**arguments))

    def reference(self, arguments: Arguments) -> list[torch.Tensor]:
        return self.call(arguments, "reference")

    def gradients(self, arguments: Arguments, flavour: str = "") -> list[torch.Tensor]:
        """Gradients of one random combination of all outputs that have any."""
        outputs = [out for out in self.call(arguments, flavour) if out.requires_grad]
        source = torch.Generator().manual_seed(3)
        weights = [torch.randn(out.shape, generator=source).to(out.dtype) for out in outputs]
        inputs = [arguments[name] for name in self.case.gradients]
        return list(torch.autograd.grad(outputs, inputs, weights))

    def close(self, found: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
        error = CASES[self.op].TOLERANCE[self.dtype]
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted):
            torch.testing.assert_close(one, other, rtol=error, atol=error)


def flat(result: Any) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else list(result)


def runs(flavours: tuple[str, ...], gradients: bool = False) -> list[Any]:
    return [
        pytest.param(Run(op, flavour, case, dtype), id=f"{op}-{flavour}-{case.name}-{str(dtype)[6:]}")
        for op, flavour in FAST
        if flavour in flavours
        for case in CASES[op].CASES
        for dtype in case.dtypes
        if case.gradients or not gradients
    ]


#: Memory order is the launchers' business, whatever the size and the dtype.
FEW = pytest.mark.parametrize(
    "run", [run for run in runs(FLAVOURS) if run.values[0].case in CASES[run.values[0].op].CASES[:3]]
)
EVERY = pytest.mark.parametrize("run", runs(FLAVOURS))
GRADIENTS = pytest.mark.parametrize("run", runs(FLAVOURS, gradients=True))


@pytest.fixture
def dirty_memory() -> Iterator[None]:
    """torch.empty gives NaN."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(before)


def in_other_memory(value: Any) -> Any:
    """The same numbers at strides of two, in the other order of dimensions."""
    if not isinstance(value, torch.Tensor) or not value.ndim:
        return value
    order = tuple(reversed(range(value.ndim)))
    spread = value.permute(order).repeat_interleave(2, dim=-1).contiguous()
    return spread[..., ::2].permute(order)


@EVERY
def test_equals_the_reference_whatever_lies_in_masked_and_fresh_memory(run: Run, dirty_memory: None) -> None:
    run.close(run.call(run.arguments(poisoned=True)), run.reference(run.arguments()))


@GRADIENTS
def test_gradients_equal_autograd_of_the_reference(
    run: Run, dirty_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = run.gradients(run.arguments(gradients=True), "reference")
    assert any(gradient.any() for gradient in wanted)
    run.close(run.gradients(run.arguments(poisoned=True, gradients=True)), wanted)
    if run.flavour != "reference":
        # The same through the dispatcher, as compiled code gets them.
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
        run.close(run.gradients(run.arguments(gradients=True)), wanted)


@FEW
def test_arguments_may_lie_anywhere_and_stay_as_they_are(run: Run) -> None:
    given = {name: in_other_memory(value) for name, value in run.arguments().items()}
    run.close(run.call(given), run.reference(run.arguments()))
    for name, value in run.arguments().items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, given[name]), name


@pytest.mark.parametrize("op, flavour", FAST)
def test_identities(op: str, flavour: str) -> None:
    assert CASES[op].IDENTITIES, "an identity does not depend on the reference"
    for identity in CASES[op].IDENTITIES:
        with base.use(flavour):
            identity()


@pytest.mark.parametrize("op", OPS)
def test_wrong_arguments_are_refused_in_words(op: str) -> None:
    assert CASES[op].REFUSED
    for case in CASES[op].REFUSED:
        run = Run(op, "reference", case, torch.float32)
        with pytest.raises(ValueError, match=case.function or op):
            run.call(run.arguments())


@pytest.mark.parametrize("run", [r for r in runs(("reference",), gradients=True)])
def test_the_reference_has_the_gradient_of_finite_differences(run: Run) -> None:
    run = Run(run.op, "reference", run.case, torch.float64)
    made = run.arguments(gradients=True)
    inputs = [made[name] for name in run.case.gradients]
    if sum(x.numel() for x in inputs) > 200:
        pytest.skip("large; smaller cases show it")

    def function(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs = run.call(made | dict(zip(run.case.gradients, values)))
        return tuple(out for out in outputs if out.requires_grad)

    assert torch.autograd.gradcheck(function, inputs, fast_mode=True)


def recorded(run: Run, arguments: Arguments) -> list[tuple[Any, tuple[Any, ...]]]:
    """(torch op, arguments) of each call of one of the folder's ops."""
    module = importlib.import_module(f"{base.PACKAGE}.{run.op}")
    found: list[tuple[Any, tuple[Any, ...]]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.compiler, "is_compiling", lambda: True)
        for op in [value for value in vars(module).values() if isinstance(value, base.Op)]:

            def record(*values: Any, call: Any = op.library_op) -> Any:
                found.append((call, values))
                return call(*values)

            patch.setattr(op, "library_op", record)
        run.call(arguments)
    return found


@pytest.mark.parametrize("op, flavour", [(op, f) for op, f in FAST if f != "reference"])
def test_torch_accepts_the_op(op: str, flavour: str) -> None:
    """Schema, autograd registration and shapes of the fake, as torch.library checks them."""
    for case in CASES[op].CASES[:2]:
        run = Run(op, flavour, case, case.dtypes[0])
        calls = recorded(run, run.arguments(gradients=True))
        assert calls
        for call, values in calls:
            with base.use(flavour):
                torch.library.opcheck(
                    call, values, test_utils=("test_schema", "test_autograd_registration", "test_faketensor")
                )


@pytest.mark.skipif(base.interpreted(), reason="this is that process")
def test_triton_in_its_interpreter() -> None:
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "-m", "not long", __file__],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "passed" in done.stdout
