"""How many processes this machine has room for, so that too many are refused before the first one starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rollbus_core.descriptors import max_connections
from rollbus_launch.launchers.base import ProcessSpec
from rollbus_wire.errors import ConfigError

#: Private memory of an actor with a small policy; one without work has half of it. Larger policies have more.
PROCESS_BYTES = 40 << 20
#: Descriptors of the broker per process, and for the rest of its work.
PROCESS_FILES, OTHER_FILES = 4, 128
_MEMORY = Path("/proc/meminfo")


def check(setting: str, count: int, *, running: int = 0) -> None:
    """Refuse ``count`` processes, of which ``running`` are there. Raises `ConfigError`.

    ``setting``: what asked for them, for people, such as ``actor=500``.
    """
    files, sockets = max_connections()
    by_files = max(0, min(files, sockets) - OTHER_FILES) // PROCESS_FILES
    limits = [(by_files, f"the broker may open {min(files, sockets):,} files and sockets (ulimit -Hn)")]
    if (free := _free_bytes()) is not None:
        why = f"{free / 2**30:.1f} GiB of memory are free, and each takes about {PROCESS_BYTES >> 20} MiB"
        limits.append((running + free // PROCESS_BYTES, why))
    most, why = min(limits)
    if count > max(most, running):
        raise ConfigError(
            f"{setting}: {count:,} processes, but this machine has room for {most:,}: {why}. Ask for fewer; "
            "one process serves many rows at once (env.num_envs, actor.max_batch)"
        )


def check_run(recipe: Any, processes: list[ProcessSpec]) -> None:
    """The same for all ``processes`` of a run, and the workers of its hubs. Raises `ConfigError`."""
    env = recipe.env
    workers = env.hubs * env.workers if env.placement == "workers" else 0
    setting = f"actor.count {recipe.actor.count}, env.hubs {env.hubs}"
    check(setting + (f", env.workers {env.workers}" if workers else ""), len(processes) + workers)


def _free_bytes() -> int | None:
    """Memory that processes can have without swapping; None where the system does not say."""
    try:
        lines = dict(line.split(":", 1) for line in _MEMORY.read_text().splitlines())
        return 1024 * int(lines["MemAvailable"].split()[0])
    except (OSError, LookupError, ValueError):
        return None
