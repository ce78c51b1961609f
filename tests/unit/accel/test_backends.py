"""Every backend says whether it can be used here and, if not, what is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rollbus_accel.backends.base import FLAVOURS, Backend, backends, choose, resolve_device
from rollbus_wire import lookup
from rollbus_wire.errors import ConfigError

NAMES = lookup.names("rollbus_accel.backends")


def find(name: str) -> Backend:
    return lookup.find("rollbus_accel.backends", name).backend


def test_the_six_are_there() -> None:
    assert NAMES == ["ascend", "cpu", "cuda", "musa", "rocm", "xpu"]
    assert [backend.name for backend in backends()] == NAMES


def test_importing_needs_no_torch() -> None:
    code = (
        "import sys; from rollbus_accel.backends.base import backends; assert len(backends()) == 6; "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("name", NAMES)
def test_states_what_it_is(name: str) -> None:
    backend = find(name)
    assert backend.name == name
    assert backend.device and backend.visible_devices and backend.collective
    usable, reason = backend.available()
    assert reason
    assert [flavour.name for flavour in backend.flavours()] == list(FLAVOURS)
    assert backend.flavours()[-1].usable
    for flavour in backend.flavours():
        assert flavour.usable == (not flavour.reason)
    assert backend.kernel_flavour() in FLAVOURS
    if usable:
        free, total = backend.memory_bytes()
        assert 0 < free <= total
        with backend.stream():
            backend.synchronise()


def test_cpu_is_always_available() -> None:
    assert find("cpu").available()[0]
    assert find("cpu").device_name(3) == "cpu"
    assert "accelerators" in find("cpu").declines("triton")


@pytest.mark.parametrize(
    ("name", "missing"),
    [("cuda", "CUDA"), ("rocm", "ROCm"), ("ascend", "torch_npu"), ("musa", "torch_musa"), ("xpu", "XPU")],
)
def test_an_absent_one_names_what_is_missing(name: str, missing: str) -> None:
    usable, reason = find(name).available()
    if usable:
        pytest.skip(f"this machine has {name}")
    assert missing in reason or find(name).visible_devices in reason
    with pytest.raises(ConfigError, match="cannot be used"):
        choose(name)


def test_collectives() -> None:
    assert {b.name: b.collective for b in backends()} == {
        "cpu": "gloo", "cuda": "nccl", "rocm": "nccl", "ascend": "hccl", "musa": "mccl", "xpu": "xccl",
    }  # fmt: skip


def test_auto_prefers_an_accelerator() -> None:
    usable = [b for b in backends() if b.available()[0]]
    assert choose().priority == max(b.priority for b in usable)


def test_unknown_backend_has_a_hint() -> None:
    with pytest.raises(ConfigError, match="did you mean 'cuda'"):
        choose("cudaa")


def test_resolve_device() -> None:
    cpu = find("cpu")
    assert resolve_device("auto", cpu) == "cpu"
    assert resolve_device("cpu", find("cuda")) == "cpu"
    with pytest.raises(ConfigError, match="whose devices are"):
        resolve_device("cuda:1", cpu)
    with pytest.raises(ConfigError, match="not a number"):
        resolve_device("cuda:x", find("cuda"))
