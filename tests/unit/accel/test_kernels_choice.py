"""Which flavour of an op runs, and what is imported for it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from rollbus_accel.backends.base import FLAVOURS
from rollbus_accel.kernels import base, launch
from rollbus_accel.kernels.discounted_return import discounted_return
from rollbus_accel.kernels.masked_reduce import masked_reduce
from rollbus_wire.errors import ConfigError

ONE = torch.ones(3)
ALL = torch.ones(3, dtype=torch.bool)


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_importing_every_op_needs_neither_triton_nor_numba_and_calling_one_no_compiler() -> None:
    code = (
        "import importlib, sys, torch; from rollbus_accel.kernels import base, launch, philox\n"
        "for op in base.ops(): importlib.import_module(f'{base.PACKAGE}.{op}')\n"
        "base.explain()\n"
        "found = [m for m in ('triton', 'numba', 'torch._dynamo') if m in sys.modules]\n"
        "assert not found, found\n"
        "from rollbus_accel.kernels.discounted_return import discounted_return\n"
        "discounted_return(torch.ones(3), torch.ones(3, dtype=torch.bool), 0.9)\n"
        "assert 'torch._dynamo' not in sys.modules"
    )
    done = python(code)
    assert done.returncode == 0, done.stderr


def test_every_decline_has_a_reason() -> None:
    for op in base.ops():
        rows = {flavour: reason for name, flavour, reason in base.explain("cpu") if name == op}
        assert set(rows) == set(FLAVOURS) and rows["reference"] == ""
        assert rows[base.choose(op, "cpu")] == ""
        for flavour, reason in rows.items():
            assert reason or flavour in base.flavour_files(op)


def test_the_cpu_takes_numba_where_there_is_one() -> None:
    pytest.importorskip("numba")
    assert base.choose("gae", "cpu") == "numba"
    assert base.choose("masked_reduce", "cpu") == "reference"
    assert base.choose("gae", "cpu", exact=True) == "reference"
    assert base.declines("masked_reduce", "numba", "cpu") == "masked_reduce has no numba.py"


def test_use_holds_for_its_block_only() -> None:
    before = base.choose("gae", "cpu")
    with base.use("reference"):
        assert base.choose("gae", "cpu") == "reference"
        with base.use("auto"):
            assert base.choose("gae", "cpu") == before
    assert base.choose("gae", "cpu") == before
    declined = dict((f, r) for op, f, r in _explained("reference") if op == "gae")
    assert "'reference' is asked for" in declined["numba"]


def _explained(flavour: str) -> list[tuple[str, str, str]]:
    with base.use(flavour):
        return base.explain()


def test_an_op_without_the_flavour_that_is_asked_for_runs_its_reference() -> None:
    pytest.importorskip("numba")
    with base.use("numba"):
        assert base.choose("masked_reduce", "cpu") == "reference"
        assert float(masked_reduce(ONE, ALL).total) == 3.0


@pytest.mark.skipif(base.interpreted(), reason="there it can run")
def test_a_flavour_that_cannot_run_is_an_error_that_says_why() -> None:
    with base.use("triton"), pytest.raises(ConfigError, match="'triton' of discounted_return .* cpu"):
        discounted_return(ONE, ALL, 0.9)


def test_an_unknown_flavour_is_refused() -> None:
    with base.use("trition"), pytest.raises(ConfigError, match="'trition'.*auto, triton, numba, reference"):
        discounted_return(ONE, ALL, 0.9)


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(ConfigError, match="'meta'"):
        base.choose("gae", "meta")


def test_the_environment_chooses() -> None:
    code = "from rollbus_accel.kernels import base; print(base.choose('gae', 'cpu'))"
    assert python(code, ROLLBUS_KERNELS="reference").stdout.strip() == "reference"


def test_float64_gets_the_reference() -> None:
    total = masked_reduce(ONE.double(), ALL).total
    returns = discounted_return(ONE.double(), ALL, 0.5)
    assert total.dtype == returns.dtype == torch.float64
    assert returns.tolist() == [1.75, 1.5, 1.0]


def test_estimates_carry_no_gradient() -> None:
    reward = ONE.clone().requires_grad_()
    for flavour in ("reference", base.choose("discounted_return", "cpu")):
        with base.use(flavour):
            assert not discounted_return(reward, ALL, 0.5).requires_grad


@pytest.mark.parametrize(
    ("n", "most", "least", "wanted"), [(1, 64, 1, 1), (33, 64, 1, 64), (65, 64, 1, 64), (3, 64, 16, 16)]
)
def test_blocks_are_powers_of_two_within_bounds(n: int, most: int, least: int, wanted: int) -> None:
    assert launch.block(n, most, least) == wanted


@pytest.mark.parametrize("warp_size", [32, 64])
def test_programs_stay_within_the_threads_of_a_device(warp_size: int) -> None:
    for elements in (1, 100, 1024, 8192, 1 << 20):
        warps = launch.num_warps(elements, warp_size)
        assert warps & (warps - 1) == 0 and 1 <= warps * warp_size <= launch.MAX_THREADS
    assert launch.num_warps(2048, warp_size) * warp_size == 256
    steps, columns = launch.time_tile(1000, warp_size)
    assert columns == warp_size and steps * columns == 1024
