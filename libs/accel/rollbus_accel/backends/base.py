"""The contract of an accelerator backend, and the choice of one. Importing this needs no torch.

A backend is one file of this package with a module attribute ``backend``. Everything that differs
between vendors is data of that object or one of its methods; nobody else asks which vendor it is.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rollbus_wire import lookup
from rollbus_wire.errors import ConfigError

#: Kernel flavours, fastest first. Every kernel has a reference; the others may decline.
FLAVOURS = ("triton", "numba", "reference")


@dataclass(frozen=True)
class Flavour:
    """Whether kernels of one flavour run here, and why not."""

    name: str
    usable: bool
    reason: str = ""


@dataclass(frozen=True)
class Backend:
    """One kind of device. The defaults suit whatever torch names ``torch.<device>``."""

    name: str
    #: torch's device type: "cpu", "cuda", "npu", ...
    device: str
    #: Environment variable that says which devices a process sees.
    visible_devices: str
    #: torch.distributed's name of the collective library.
    collective: str
    #: Package that teaches torch the device; "torch" where torch has it built in.
    package: str = "torch"
    #: Among available backends "auto" takes the highest.
    priority: int = 1

    def available(self) -> tuple[bool, str]:
        """Whether a device can be used, and if not, what is missing."""
        for package in ("torch", self.package):
            if importlib.util.find_spec(package) is None:
                return False, f"the package {package} is not installed"
        missing = self.missing_build(importlib.import_module("torch"))
        if missing:
            return False, missing
        if self.package != "torch":
            importlib.import_module(self.package)
        count = self.num_devices()
        if count < 1:
            return False, f"torch.{self.device} sees no device; check the driver and {self.visible_devices}"
        return True, f"{count} device(s)"

    def missing_build(self, torch: Any) -> str:
        """What this build of torch lacks for the device; "" if nothing."""
        return ""

    def num_devices(self) -> int:
        """Devices that this process sees."""
        runtime = self._runtime()
        return int(runtime.device_count()) if runtime.is_available() else 0

    def device_name(self, index: int = 0) -> str:
        """torch's name of device ``index``."""
        return f"{self.device}:{index}"

    def memory_bytes(self, index: int = 0) -> tuple[int, int]:
        """(free, total) memory of a device."""
        free, total = self._runtime().mem_get_info(index)
        return int(free), int(total)

    @contextlib.contextmanager
    def stream(self, index: int = 0) -> Iterator[Any]:
        """Run the block on a stream of its own, then wait for it; gives the stream."""
        runtime = self._runtime()
        stream = runtime.Stream(device=self.device_name(index))
        with runtime.stream(stream):
            yield stream
        stream.synchronize()

    def synchronise(self, index: int = 0) -> None:
        """Wait until the device has done all that it was given."""
        self._runtime().synchronize(index)

    def flavours(self) -> list[Flavour]:
        """Kernel flavours in the order in which they are tried; the reference always runs."""
        found = []
        for name in FLAVOURS:
            reason = self.declines(name)
            found.append(Flavour(name, not reason, reason))
        return found

    def kernel_flavour(self) -> str:
        """The first flavour that runs here."""
        return next(flavour.name for flavour in self.flavours() if flavour.usable)

    def declines(self, flavour: str) -> str:
        """Why kernels of ``flavour`` do not run on this device; "" if they do."""
        if flavour == "reference":
            return ""
        if flavour == "numba":
            return f"numba kernels are for the CPU, not for {self.device}"
        return missing_package(flavour)

    def _runtime(self) -> Any:
        return getattr(importlib.import_module("torch"), self.device)


def missing_package(name: str) -> str:
    """Text saying that the package is absent; "" if it is there."""
    return "" if importlib.util.find_spec(name) else f"the package {name} is not installed"


def backends() -> list[Backend]:
    """All backends of this package."""
    package = "rollbus_accel.backends"
    return [lookup.find(package, name).backend for name in lookup.names(package)]


def choose(name: str = "auto") -> Backend:
    """The backend ``name``, or the best one available.

    Raises `ConfigError` if it does not exist or cannot be used here, with the reason.
    """
    if name == "auto":
        found = [backend for backend in backends() if backend.available()[0]]
        if not found:
            reasons = "; ".join(f"{b.name}: {b.available()[1]}" for b in backends())
            raise ConfigError(f"no accelerator backend can be used: {reasons}")
        return max(found, key=lambda backend: backend.priority)
    backend: Backend = lookup.find("rollbus_accel.backends", name).backend
    usable, reason = backend.available()
    if not usable:
        raise ConfigError(f"deploy.backend {name!r} cannot be used: {reason}; use 'auto' or install it")
    return backend


def resolve_device(device: str, backend: Backend) -> str:
    """torch's device for a ``device`` setting: "auto" is the first device of ``backend``.

    Raises `ConfigError` for a device that neither ``backend`` nor the CPU has.
    """
    if device == "auto":
        return backend.device if backend.device == "cpu" else backend.device_name(0)
    kind, _, index = device.partition(":")
    if index and not index.isdecimal():
        raise ConfigError(f"device {device!r}: {index!r} is not a number")
    if kind == "cpu":
        return "cpu"
    if kind != backend.device:
        raise ConfigError(
            f"device {device!r}: the backend is {backend.name!r}, whose devices are "
            f"{backend.device}:N; set deploy.backend or the device"
        )
    if int(index or 0) >= backend.num_devices():
        raise ConfigError(f"device {device!r}: only {backend.num_devices()} are visible")
    return backend.device_name(int(index or 0))
