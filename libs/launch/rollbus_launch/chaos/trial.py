"""One run under chaos: start, break, watch, end, judge."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from rollbus_core.config.load import load
from rollbus_core.paths import RunPaths
from rollbus_launch.audit import audit
from rollbus_launch.chaos import clock
from rollbus_launch.chaos.disks import Disk, private_mounts
from rollbus_launch.chaos.faults import all_faults
from rollbus_launch.chaos.proxy import Proxy
from rollbus_launch.chaos.schedule import Fault, faults
from rollbus_launch.chaos.world import World, free_port
from rollbus_launch.records import read_lines
from rollbus_launch.session import layout
from rollbus_wire.errors import ConfigError, RollbusError

#: What a run under chaos has unless the command line says otherwise: all services in processes of their
#: own, two of what may be doubled, checkpoints often, no end but by the clock.
SETTINGS = {
    "run.audit": "true", "run.total_steps": "1000000000", "stop_when.eval_return": "null",
    "deploy.layout": "stated", "deploy.restarts": "1000", "env.hubs": "2", "env.num_slices": "4",
    "actor.count": "2", "env.placement": "workers", "env.workers": "1", "checkpoint.every_s": "5",
    "eval.every_steps": "50000",
}  # fmt: skip
#: A recovery counts once so many updates have been applied: the first may be of data from before the fault.
UPDATES = 3
START_S, GIVE_UP_S, STOP_S = 300.0, 60.0, 30.0
DISK_BYTES, MEMORY_BYTES = 256 << 20, 192 << 20


class TrialFailed(RollbusError):
    """The run under chaos ended by itself."""

    code = "chaos"


@dataclass
class Injected:
    """A fault and how the run came back from it."""

    number: int
    kind: str
    what: str
    at_s: float
    lasted_s: float
    #: From the end of the fault to the next applied update, and to the third.
    next_update_s: float | None = None
    recovery_s: float | None = None
    #: Until all services were ready again.
    whole_s: float | None = None


@dataclass
class Report:
    """What `rollbus chaos` prints."""

    recipe: str
    seed: int
    minutes: float
    injected: list[Injected] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    audit: dict[str, Any] = field(default_factory=dict)
    best_return: float | None = None
    wanted_return: float | None = None
    stop_s: float = 0.0
    left_over: list[str] = field(default_factory=list)
    updates: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.problems

    def to_data(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"passed": self.passed, "kinds": len({i.kind for i in self.injected})}


class Trial:
    """Runs ``recipe`` for ``minutes`` under the faults of ``seed``; ``limit_s`` bounds a recovery."""

    def __init__(
        self, recipe: Path, overrides: Sequence[str], run_dir: Path, *, minutes: float, seed: int,
        limit_s: float, kinds: Sequence[str] = (), tell: Callable[[str], Any] = print,
    ) -> None:  # fmt: skip
        stated = {override.partition("=")[0] for override in overrides}
        defaults = [f"{key}={value}" for key, value in SETTINGS.items() if key not in stated]
        self._overrides = [*defaults, *overrides]
        self._recipe, self._resolved = recipe, load(recipe, self._overrides)
        if run_dir.exists() and any(run_dir.iterdir()):
            raise ConfigError(f"{run_dir} is not empty: a run under chaos begins anew; use another --run-dir")
        self._run_dir, self._minutes, self._seed = run_dir, minutes, seed
        self._limit_s, self._tell = limit_s, tell
        self._modules = all_faults()
        if unknown := set(kinds) - set(self._modules):
            raise ConfigError(
                f"no such fault: {', '.join(sorted(unknown))}; there are {', '.join(self._modules)}"
            )
        self._kinds = list(kinds) or list(self._modules)
        wanted = load(recipe, []).recipe.stop_when.eval_return
        self.report = Report(str(recipe), seed, minutes, wanted_return=wanted)
        self._names = {
            f"{role}-{process.index}" for process in layout(self._resolved.recipe) for role in process.roles
        }

    def run(self) -> Report:
        """The whole trial; raises `TrialFailed` if the run cannot even begin."""
        with tempfile.TemporaryDirectory(prefix="rollbus-chaos-") as scratch:
            world = self._world(Path(scratch))
            try:
                self._train(world, Path(scratch) / "train.log")
            finally:
                world.proxy.close()
                for disk in (world.disk, world.memory):
                    if disk is not None:
                        disk.close(keep=disk is world.disk)
        return self.report

    def _world(self, scratch: Path) -> World:
        mounted = private_mounts()
        disk = Disk(self._run_dir, DISK_BYTES) if mounted else None
        memory = Disk(scratch / "memory", MEMORY_BYTES) if mounted else None
        registry, store = free_port(), free_port()
        os.environ["ROLLBUS_REGISTRY"] = f"tcp://127.0.0.1:{registry}"
        os.environ["ROLLBUS_STORE"] = f"tcp://127.0.0.1:{store}"
        if memory is not None:
            os.environ["ROLLBUS_RUNTIME_DIR"] = str(memory.folder)
        clock.create(scratch / "clock")
        proxy = Proxy({registry: "registry", store: "store"}, self._seed)
        return World(RunPaths(self._run_dir), proxy, scratch / "clock", disk, memory)

    def _train(self, world: World, log: Path) -> None:
        child = {
            "ROLLBUS_SOCKS_PROXY": world.proxy.address, "ROLLBUS_HUB_DATA": "tcp://127.0.0.1:*",
            clock.CLOCK: str(world.clock),
        }  # fmt: skip
        command = [
            sys.executable, "-m", "rollbus_launch", "train", str(self._recipe), *self._overrides,
            "--run-dir", str(self._run_dir),
        ]  # fmt: skip
        with open(log, "wb") as output:
            process = subprocess.Popen(
                command, env=os.environ | child, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        try:
            self._await_start(world, process, log)
            self._break(world, process)
        finally:
            self._end(world, process)
        if process.returncode not in (0, 130):
            tail = log.read_text(errors="replace")[-2000:]
            self.report.problems.append(f"the run ended by itself ({process.returncode}): {tail}")
        self._judge(world)

    def _await_start(self, world: World, process: subprocess.Popen[bytes], log: Path) -> None:
        def ready() -> bool:
            return process.poll() is not None or (world.updates() >= UPDATES and world.whole(self._names))

        if not world.wait(START_S, ready) or process.poll() is not None:
            raise TrialFailed(
                f"the run was not whole within {START_S:.0f} s: {log.read_text(errors='replace')[-3000:]}"
            )

    # --- breaking ---

    def _break(self, world: World, process: subprocess.Popen[bytes]) -> None:
        began = time.monotonic()
        for fault in faults(self._seed, self._usable(world)):
            if time.monotonic() - began + fault.gap_s > 60.0 * self._minutes:
                break
            world.wait(fault.gap_s)
            injected = self._inject(world, fault, began)
            self.report.injected.append(injected)
            if process.poll() is not None:
                return
            if injected.recovery_s is None or injected.whole_s is None:
                self.report.problems.append(f"no recovery from {injected.kind}: {injected.what}")
                return

    def _usable(self, world: World) -> list[str]:
        usable = []
        for kind in self._kinds:
            lacking = [n for n in getattr(self._modules[kind], "needs", ()) if getattr(world, n) is None]
            if lacking:
                self.report.skipped[kind] = "needs the right to mount a small file system (root)"
            else:
                usable.append(kind)
        return usable

    def _inject(self, world: World, fault: Fault, began: float) -> Injected:
        module, start = self._modules[fault.kind], time.monotonic()
        what = module.inject(world, fault)
        end = time.monotonic()
        injected = Injected(fault.number, fault.kind, what, start - began, end - start)
        before = world.updates()
        if world.wait(GIVE_UP_S, lambda: world.updates() > before):
            injected.next_update_s = time.monotonic() - end
        if world.wait(GIVE_UP_S, lambda: world.updates() >= before + UPDATES):
            injected.recovery_s = time.monotonic() - end
        if world.wait(GIVE_UP_S, lambda: world.whole(self._names)):
            injected.whole_s = time.monotonic() - end
        if hasattr(module, "confirm"):
            injected.what = module.confirm(world, fault, what)
        self._tell(describe(injected))
        return injected

    # --- end ---

    def _end(self, world: World, process: subprocess.Popen[bytes]) -> None:
        began = time.monotonic()
        children = [] if process.poll() is not None else psutil.Process(process.pid).children(recursive=True)
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self.report.stop_s = time.monotonic() - began
        gone, alive = psutil.wait_procs(children, timeout=1.0)
        self.report.left_over = [f"process {p.pid}" for p in alive]
        if world.paths.runtime.exists():
            self.report.left_over.append(str(world.paths.runtime))

    def _judge(self, world: World) -> None:
        report = self.report
        verdict = audit(world.paths.audit)
        report.audit, report.updates = verdict.to_data(), world.updates()
        if not verdict.good:
            report.problems.append(
                f"audit: {verdict.duplicated} duplicated, {verdict.unexplained} unexplained: "
                + "; ".join(verdict.problems[:3])
            )
        slow = [i for i in report.injected if (i.recovery_s or 0.0) > self._limit_s]
        report.problems += [f"recovery took {i.recovery_s:.1f} s after {i.kind}: {i.what}" for i in slow]
        report.problems += [f"left behind: {each}" for each in report.left_over]
        scores = [row["mean_return"] for row in read_lines(world.paths.evaluations)]
        report.best_return = max(scores, default=None)
        world.paths.chaos.write_text(json.dumps(report.to_data(), indent=1))


def describe(injected: Injected) -> str:
    """One line for people."""
    took = "none" if injected.recovery_s is None else f"{injected.recovery_s:.1f} s"
    return f"{injected.at_s:6.1f} s  {injected.kind}: {injected.what}; recovery {took}"
