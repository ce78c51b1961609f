"""On which machine a figure was measured."""

from __future__ import annotations

import os
import platform
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("torch", "numpy", "pyzmq", "numba", "triton", "onnxruntime", "gymnasium", "mujoco")


def describe() -> dict[str, object]:
    """CPU, cores, memory, versions and date."""
    return {
        "cpu": _cpu(), "cores": os.cpu_count(), "memory_gb": _memory_gb(), "system": platform.platform(),
        "python": platform.python_version(), "packages": _versions(), "date": time.strftime("%Y-%m-%d"),
    }  # fmt: skip


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def _memory_gb() -> float:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
