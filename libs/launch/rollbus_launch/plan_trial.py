"""A trial: the recipe trains for some seconds in processes of its own, and what they use is read.

The rehearsal shows what each poll costs; only processes side by side show what cold caches, waking up and
empty turns add. CPU time per thread comes from the system, the learner's from its metrics.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollbus_core.config.load import load_resolved
from rollbus_core.feed import Feed
from rollbus_core.paths import RunPaths
from rollbus_core.plan.calibrate import Seen
from rollbus_launch import nursery
from rollbus_launch.children import start_command
from rollbus_launch.launchers.local import LocalLauncher
from rollbus_launch.nursery import Nursery
from rollbus_launch.plan_recipe import quiet
from rollbus_launch.session import layout
from rollbus_wire.errors import DeadlineExceeded

#: Of the time after the first update: not counted, counted, and at most until enough updates are seen.
WARM_S, COUNTED_S, LATEST_S = 1.5, 2.5, 20.0
#: Counted updates, at least.
MIN_UPDATES = 3
#: A trial without an update by then is given up.
PATIENCE_S = 60.0
STOP_S = 3.0
_TURN_S = 0.02

Row = dict[str, Any]


@dataclass(frozen=True)
class Mark:
    """The last update, and the CPU seconds that threads had used when it was seen."""

    row: Row
    #: Process -> [main thread, all others].
    cpu_s: dict[str, tuple[float, float]]


class Trial:
    """Trains ``resolved`` for a while with so many environments, slices, hubs, actors, and ``processes``."""

    def __init__(self, resolved: Any, *, num_envs: int, num_slices: int, hubs: int, actors: int,
                 processes: tuple[str, ...], counted_s: float = COUNTED_S) -> None:  # fmt: skip
        self._counted_s = counted_s
        changes: dict[str, dict[str, Any]] = {
            "env": {"num_envs": num_envs, "num_slices": num_slices, "hubs": hubs},
            "actor": {"count": actors},
            "deploy": {"processes": list(processes)},
        }
        self.resolved = quiet(resolved, changes)
        #: Of the trial's own number of environments, once it has run.
        self.feed: Feed = resolved.feed
        self.rows: list[Row] = []

    def seen(self) -> Seen | None:
        """What the processes used; None where the system does not tell, or updates take too long.

        Raises `ProcessFailed` with what ended a process, `DeadlineExceeded`.
        """
        if not Path("/proc/self/schedstat").exists():
            return None
        with self._running() as (launcher, paths):
            self._launcher, self._paths = launcher, paths
            first = self._next(PATIENCE_S)
            if first is None:
                raise DeadlineExceeded(
                    f"the trial came to no update within {PATIENCE_S:.0f} s; see that the recipe trains "
                    "(rollbus train), or give costs of a machine where it does (--costs)"
                )
            latest_s = first.row["time"] + LATEST_S
            begin = self._after(first, WARM_S, 1, latest_s)
            end = begin and self._after(begin, self._counted_s, MIN_UPDATES, latest_s)
        return self._between(begin, end) if begin and end else None

    @contextmanager
    def _running(self) -> Iterator[tuple[LocalLauncher, RunPaths]]:
        folder = Path(tempfile.mkdtemp(prefix="rollbus-trial-"))
        paths = RunPaths(folder)
        paths.create()
        try:
            with paths.alive():
                paths.config.write_text(self.resolved.to_yaml())
                self.feed = load_resolved(paths.config).feed
                with self._launched(paths) as launcher:
                    yield launcher, paths
        finally:
            for each in (paths.runtime, folder):
                shutil.rmtree(each, ignore_errors=True)

    @contextmanager
    def _launched(self, paths: RunPaths) -> Iterator[LocalLauncher]:
        parent = Nursery(paths) if nursery.available() else None
        launcher = LocalLauncher(
            paths, max_restarts=0, on_exit=lambda *_: None, start=parent.start if parent else start_command
        )
        try:
            for process in layout(self.resolved.recipe):
                if process.roles != ("evaluator",):
                    launcher.up(process)
            yield launcher
        finally:
            launcher.down(STOP_S)
            if parent:
                parent.close()

    def _after(self, mark: Mark, seconds: float, updates: int, latest_s: float) -> Mark | None:
        """The first mark so many ``seconds`` and ``updates`` after ``mark``, if it comes in time."""
        time_s, wanted = mark.row["time"] + seconds, mark.row["update"] + updates
        found: Mark | None = mark
        while found is not None and (found.row["time"] < time_s or found.row["update"] < wanted):
            found = self._next(latest_s - time.time())
        return found

    def _next(self, patience_s: float) -> Mark | None:
        """The next update; None if none comes in time."""
        metrics = self._paths.metrics
        num, until = len(self.rows), time.monotonic() + patience_s
        while time.monotonic() < until:
            self._launcher.poll()
            if metrics.exists():
                lines = metrics.read_text().splitlines(keepends=True)
                self.rows = [json.loads(line) for line in lines if line.endswith("\n")]
            if len(self.rows) > num:
                return Mark(self.rows[-1], {str(p["name"]): _cpu_s(p["pid"]) for p in self._launcher.ps()})
            time.sleep(_TURN_S)
        return None

    def _between(self, begin: Mark, end: Mark) -> Seen:
        first, last = begin.row, end.row
        rows = [row for row in self.rows if first["update"] < row["update"] <= last["update"]]
        steps = last["env_steps"] - first["env_steps"]
        waited_s = sum(row["sample_s"] for row in rows)
        used = {
            name: [now - then for now, then in zip(end.cpu_s[name], begin.cpu_s[name], strict=True)]
            for name in end.cpu_s
        }
        return Seen(
            process_s={name: main_s / steps for name, (main_s, _) in used.items()},
            io_s=sum(other_s for _, other_s in used.values()) / steps,
            learner_s=max(0.0, last["time"] - first["time"] - waited_s) / steps,
            episode_steps=steps / max(1, sum(row.get("episodes", 0) for row in rows)),
        )  # fmt: skip


def _cpu_s(pid: Any) -> tuple[float, float]:
    """Of the main thread of ``pid``, and of all its others."""
    main_s, others_s = 0.0, 0.0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            seconds = int((task / "schedstat").read_text().split()[0]) / 1e9
        except (FileNotFoundError, ProcessLookupError):
            continue  # a thread that has just ended
        if task.name == str(pid):
            main_s = seconds
        else:
            others_s += seconds
    return main_s, others_s
