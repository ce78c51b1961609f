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
from rollbus_launch.launchers.local import LocalLauncher
from rollbus_launch.planning.recipe import quiet
from rollbus_launch.processes import cpu_use, nursery
from rollbus_launch.processes.children import start_command
from rollbus_launch.processes.cpu_use import Used
from rollbus_launch.processes.nursery import Nursery
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
    """An update, and what threads had used when it was seen."""

    row: Row
    #: By process.
    used: dict[str, Used]
    #: By this process, and by all that run on the machine.
    own_s: float
    machine_s: float


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
        self._at = 0

    def seen(self) -> Seen | None:
        """What the processes used; None where the system does not tell, or updates take too long.

        Raises `ProcessFailed` with what ended a process, `DeadlineExceeded`.
        """
        if not cpu_use.told():
            return None
        with self._running() as (launcher, paths):
            self._launcher, self._paths = launcher, paths
            first = self._next(PATIENCE_S)
            if first is None:
                raise DeadlineExceeded(
                    f"the trial came to no update within {PATIENCE_S:.0f} s; see that the recipe trains "
                    "(rollbus train), or give costs of a machine where it does (--costs)"
                )
            latest_s = first["time"] + LATEST_S
            begin = self._after(first, WARM_S, 1, latest_s)
            end = begin and self._after(begin.row, self._counted_s, MIN_UPDATES, latest_s)
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
            if parent:
                parent.close()
            launcher.down(STOP_S)

    def _after(self, row: Row, seconds: float, updates: int, latest_s: float) -> Mark | None:
        """The first update so many ``seconds`` and ``updates`` after that of ``row``, if it comes in time."""
        time_s, wanted = row["time"] + seconds, row["update"] + updates
        found: Row | None = row
        while found is not None and (found["time"] < time_s or found["update"] < wanted):
            found = self._next(latest_s - time.time())
        if found is None:
            return None
        used = {str(p["name"]): cpu_use.used(p["pid"]) for p in self._launcher.ps()}
        return Mark(found, used, time.process_time(), cpu_use.machine_s())

    def _next(self, patience_s: float) -> Row | None:
        """The newest update once there is a new one; None if none comes in time."""
        num, until = len(self.rows), time.monotonic() + patience_s
        while time.monotonic() < until:
            self._launcher.poll()
            self._read()
            if len(self.rows) > num:
                return self.rows[-1]
            time.sleep(_TURN_S)
        return None

    def _read(self) -> None:
        """What was written since; a line that is not whole yet waits. Little work: it disturbs the trial."""
        if not self._paths.metrics.exists():
            return
        with self._paths.metrics.open() as file:
            file.seek(self._at)
            for line in file:
                if not line.endswith("\n"):
                    break
                self.rows.append(json.loads(line))
                self._at += len(line.encode())

    def _between(self, begin: Mark, end: Mark) -> Seen:
        first, last = begin.row, end.row
        rows = [row for row in self.rows if first["update"] < row["update"] <= last["update"]]
        steps = last["env_steps"] - first["env_steps"]
        waited_s = sum(row["sample_s"] for row in rows)
        used = {name: each.since(begin.used[name]) for name, each in end.used.items()}
        seconds = last["time"] - first["time"]
        known_s = end.own_s - begin.own_s + sum(sum(each) for each in used.values())
        return Seen(
            process_s={name: each.main_s / steps for name, each in used.items()},
            io_s=sum(each.others_s for each in used.values()) / steps,
            learner_s=max(0.0, seconds - waited_s) / steps,
            episode_steps=steps / max(1, sum(row.get("episodes", 0) for row in rows)),
            steps_per_s=steps / seconds,
            seconds=seconds,
            others_cores=max(0.0, end.machine_s - begin.machine_s - known_s) / seconds,
        )
