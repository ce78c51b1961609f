"""Costs that were measured before, in the user's cache: one file per recipe, machine and versions."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

from rollbus_core.cores import num_cores
from rollbus_core.plan.costs import StageCosts, load_costs
from rollbus_wire.errors import ConfigError

#: Sections whose settings change no cost, or only what is planned.
_APART = frozenset({"deploy", "eval", "stop_when", "checkpoint"})
_PACKAGES = ("rollbus", "torch", "numpy", "pyzmq", "gymnasium", "mujoco", "onnxruntime")


def folder() -> Path:
    """ROLLBUS_CACHE_DIR, else the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")
    return Path(os.environ.get("ROLLBUS_CACHE_DIR", Path(base) / "rollbus")) / "plan"


def machine() -> dict[str, str]:
    """What costs hold for: processor, cores, system, versions."""
    facts = {
        "node": platform.node(),
        "cpu": _cpu(),
        "cores": str(num_cores()),
        "python": platform.python_version(),
    }
    for name in _PACKAGES:
        try:
            facts[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return facts


def path(resolved: Any) -> Path:
    """The file of this recipe on this machine."""
    recipe = resolved.recipe.model_dump(mode="json", exclude=set(_APART))
    recipe["run"] = {"deterministic": resolved.recipe.run.deterministic}  # seeds and lengths cost nothing
    key = json.dumps([recipe, machine()], sort_keys=True, default=str)
    return folder() / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"


def cached(resolved: Any) -> StageCosts | None:
    """Costs from the cache; None if there are none, or another release wrote them."""
    try:
        return load_costs(path(resolved))
    except ConfigError:
        return None


def keep(resolved: Any, costs: StageCosts) -> None:
    """Write ``costs`` into the cache; a cache that cannot be written is none."""
    target = path(resolved)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        whole = target.with_suffix(f".{os.getpid()}")
        whole.write_text(costs.model_dump_json(indent=1))
        whole.replace(target)
    except OSError:
        return


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
