"""The CPU: always there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from rollbus_accel.backends.base import Backend, missing_package


class Cpu(Backend):
    """Streams are no-ops and memory is the machine's."""

    def num_devices(self) -> int:
        return 1

    def device_name(self, index: int = 0) -> str:
        return "cpu"

    def memory_bytes(self, index: int = 0) -> tuple[int, int]:
        page = os.sysconf("SC_PAGE_SIZE")
        return os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page

    @contextlib.contextmanager
    def stream(self, index: int = 0) -> Iterator[Any]:
        yield None

    def synchronise(self, index: int = 0) -> None:
        pass

    def declines(self, flavour: str) -> str:
        if flavour == "triton":
            return "triton compiles for accelerators, not for the CPU"
        return missing_package("numba") if flavour == "numba" else ""


backend = Cpu("cpu", "cpu", visible_devices="OMP_PLACES", collective="gloo", priority=0)
