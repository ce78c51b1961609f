"""What is known of a process that ended without a report: what it said last, and where it was."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollbus_launch.launchers.base import ProcessSpec

#: Characters of its last words that are shown.
MAX_WORDS = 2000
#: Signals that native code gets for what it does itself.
CRASHES = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE})
#: A line of the log on how things go, which says nothing of an end.
_GOES_WELL = re.compile(r"\d\d:\d\d:\d\d \S+ (?!WARNING |ERROR |CRITICAL )")


def size(output: Path) -> int:
    """How much was said by earlier starts."""
    return output.stat().st_size if output.exists() else 0


def words(output: Path, begin: int) -> str:
    """What stands in ``output`` from byte ``begin`` on, without news of the log."""
    if not output.exists():
        return ""
    with open(output, "rb") as file:
        file.seek(max(begin, size(output) - 4 * MAX_WORDS))
        lines = file.read().decode(errors="replace").splitlines()
    return "\n".join(line for line in lines if not _GOES_WELL.match(line)).strip()[-MAX_WORDS:]


def how(code: int) -> str:
    """An exit code, or the signal that it stands for."""
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


def unexplained(code: int) -> bool:
    """Whether the process itself, or native code in it, ended so; not somebody who killed it."""
    return code > 0 or -code in CRASHES


def about(process: ProcessSpec, members: Sequence[dict[str, Any]], placement: str) -> str:
    """Where the services of ``process`` were when they were heard last, and what may have ended it."""
    named = {member["name"]: member for member in members if member["state"] != "failed"}
    names = [f"{role}-{process.index}" for role in process.roles]
    stages = [f"{named[name]['stage']!r} ({name})" for name in names if named.get(name, {}).get("stage")]
    text = f", last heard of in stage {' and '.join(stages)}" if stages else ""
    if placement == "inline" and {"hub", "evaluator"}.intersection(process.roles):
        text += (
            "; its environments run in it (env.placement: inline): with env.placement=workers one that exits "
            "or crashes in reset or step ends alone, and is named"
        )
    return text
