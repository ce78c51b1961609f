"""torch.compile sees ops whole: the answer and the gradients of eager code, without a break in the graph."""

from __future__ import annotations

import importlib

import pytest
import torch

from rollbus_accel.kernels import base

OPS = base.ops()


@pytest.mark.long
@pytest.mark.parametrize("flavour", ["numba", "reference"])
@pytest.mark.parametrize("name", OPS)
def test_compiled_equals_eager(name: str, flavour: str) -> None:
    if reason := base.declines(name, flavour, "cpu"):
        pytest.skip(reason)
    module = importlib.import_module(f"{base.PACKAGE}.{name}")
    cases = importlib.import_module(f"{base.PACKAGE}.{name}.cases")
    case = cases.CASES[1]
    function = getattr(module, case.function or name)
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True)
    error = cases.TOLERANCE[torch.float32]

    def results(call) -> list[torch.Tensor]:  # type: ignore[no-untyped-def]
        made = case.make(torch.float32)
        for argument in case.gradients:
            made[argument].requires_grad_()
        output = call(**made)
        outputs = [output] if isinstance(output, torch.Tensor) else list(output)
        total = sum(x.sum() for x in outputs if x.requires_grad)
        inputs = [made[argument] for argument in case.gradients]
        return [*outputs, *(torch.autograd.grad(total, inputs) if inputs else ())]

    with base.use(flavour):
        for one, other in zip(results(compiled), results(function)):
            torch.testing.assert_close(one, other, rtol=error, atol=error)
