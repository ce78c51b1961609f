"""How a run ended whose services have no launcher: its broker says so as the last of all.

Under a launcher the summary tells it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence

from rollbus_core.checkpoints import write_atomic
from rollbus_core.paths import RunPaths
from rollbus_launch.processes.children import LAUNCHER_PID


def begun(paths: RunPaths, roles: Sequence[str]) -> None:
    """A process with ``roles`` starts: what an earlier broker said of its end holds no more."""
    if "broker" in roles:
        with contextlib.suppress(OSError):
            paths.stopped.unlink(missing_ok=True)


def stopped(paths: RunPaths, roles: Sequence[str], by: str) -> None:
    """A process with ``roles`` was stopped in order ``by`` whom; without room nothing is left of it."""
    if "broker" in roles and LAUNCHER_PID not in os.environ:
        with contextlib.suppress(OSError):
            write_atomic(paths.stopped, json.dumps({"stopped_by": by}).encode())


def stopped_by(paths: RunPaths) -> str:
    """Who stopped the run in order; "": nobody, or it is not known."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return str(json.loads(paths.stopped.read_bytes())["stopped_by"])
    return ""
