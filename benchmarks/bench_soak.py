"""A hub under 1 to 1000 connections with 1, 4 and 16 actors: ticks, memory, descriptors, stuck peers.

    python benchmarks/bench_soak.py [--connections 1 100 1000] [--actors 1 4 16] [--seconds 10]
    python benchmarks/bench_soak.py --acceptance      # 1000 connections, one actor, two minutes once warm
    python benchmarks/bench_soak.py --short           # what benchmarks/all.py runs

Every connection is a real peer with one row of a toy environment, every row a slice of its own, so that
each is served for itself. Peers live in at most 8 processes, all actors in one, the hub in its own. A tick is
measured where it counts: at the peer, from one step to the next. Memory is the resident set of hub and
actors, its slope the median over all pairs of samples, because there are short peaks of a few megabytes. It
is warm once each connection has carried `WARM_TICKS`: the queues that ZeroMQ keeps per connection touch their
memory in their first 512 messages. An actor that hears nothing of a slice for a second asks, and may then
answer a tick twice: that is counted, and is no loss.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from soak_processes import SAMPLE_S

#: What the processes run.
PROGRAM = Path(__file__).with_name("soak_processes.py")
PROCESSES = 8
#: Share of a run after which memory is believed to be warm.
WARM_UP = 0.3
#: Ticks per connection after which memory is warm, and how long they may take.
WARM_TICKS, WARM_S = 1500, 900.0
MAX_SLOPE_MB_PER_MIN, MAX_P99_RATIO, MAX_SLOWED = 1.0, 5.0, 0.05
#: What a hub counts if something was sent in vain.
COUNTED = ("straddled", "stale_acts", "bad_acts", "late_outcomes", "non_finite")


@dataclass
class Result:
    """What one run gave."""

    ticks_per_s: float
    p50_ms: float
    p99_ms: float
    slope_mb_per_min: float
    memory_mb: float
    descriptors: int
    #: Answers that came a second time.
    twice: int
    #: What was lost, by reason; empty: nothing.
    lost: dict[str, int] = field(default_factory=dict)

    def line(self, connections: int, actors: int) -> str:
        """For people."""
        return (
            f"{connections} connections, {actors} actors: {self.ticks_per_s:.0f} ticks/s, "
            f"p50 {self.p50_ms:.2f} ms, p99 {self.p99_ms:.2f} ms, {self.memory_mb:.0f} MB, "
            f"{self.slope_mb_per_min:+.2f} MB/min, {self.descriptors} descriptors, "
            f"{self.twice} answered twice, lost {self.lost or 'none'}"
        )


class Soak:
    """All processes of one run."""

    def __init__(self, connections: int, actors: int, folder: Path, *, extra: bool = False) -> None:
        """``extra``: one more connection in a process of its own, which can be stopped."""
        self.folder, self.processes = folder, []
        self.names = [f"peers-{index}" for index in range(min(PROCESSES - extra, connections))]
        rows = connections + extra
        self.services = [self._start("hub", rows), self._start("actors", actors, rows)]
        shares = [
            connections // len(self.names) + (i < connections % len(self.names))
            for i in range(len(self.names))
        ]
        self.peers = [self._start("peers", n, name) for n, name in zip(shares, self.names, strict=True)]
        self.extra = self._start("peers", 1, "extra") if extra else None

    def _start(self, *words: object) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(PROGRAM), *map(str, words), str(self.folder)]
        self.processes.append(subprocess.Popen(command))
        return self.processes[-1]

    def wait_until_all_step(self, limit_s: float = 300.0) -> None:
        """Until the hub has all rows and every peer process has stepped."""
        deadline = time.monotonic() + limit_s
        while not all(_read(self.folder / f"{name}.json").get("steps") for name in self.names):
            if time.monotonic() > deadline or any(p.poll() is not None for p in self.processes):
                raise SystemExit("the soak did not begin to step")
            time.sleep(0.1)

    def steps(self) -> int:
        """Of all peers but the extra one so far."""
        return sum(_read(self.folder / f"{name}.json").get("steps", 0) for name in self.names)

    def wait_until_warm(self, connections: int) -> None:
        """Until the queues of all connections have been filled once."""
        deadline = time.monotonic() + WARM_S
        while self.steps() < WARM_TICKS * connections:
            if time.monotonic() > deadline:
                raise SystemExit(f"only {self.steps()} ticks in {WARM_S:.0f} s: memory is not warm")
            time.sleep(SAMPLE_S)

    def memory_bytes(self) -> int:
        """Resident set of hub and actors."""
        pages = sum(int(Path(f"/proc/{p.pid}/statm").read_text().split()[1]) for p in self.services)
        return pages * os.sysconf("SC_PAGE_SIZE")

    def descriptors(self) -> int:
        """Of hub and actors."""
        return sum(len(os.listdir(f"/proc/{p.pid}/fd")) for p in self.services)

    def stop(self) -> None:
        """End peers first, so that nothing is on its way."""
        for group in (
            self.services[1:],
            self.peers + ([self.extra] if self.extra else []),
            self.services[:1],
        ):
            for process in group:
                process.send_signal(signal.SIGCONT)
                process.terminate()
            for process in group:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(20)
                process.kill()


def soak(connections: int, actors: int, seconds: float, *, warm: bool = False) -> Result:
    """One run; ``warm``: what is measured begins when memory is warm."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        run = Soak(connections, actors, Path(folder))
        try:
            run.wait_until_all_step()
            if warm:
                run.wait_until_warm(connections)
            began, first = time.monotonic(), run.steps()
            samples, descriptors = [], 0
            while (now := time.monotonic()) - began < seconds:
                samples.append((now - began, run.memory_bytes()))
                descriptors = max(descriptors, run.descriptors())
                time.sleep(SAMPLE_S)
            rate = (run.steps() - first) / (time.monotonic() - began)
        finally:
            run.stop()
        return _result(Path(folder), run, rate, samples, descriptors)


def _result(
    folder: Path, run: Soak, rate: float, samples: list[tuple[float, int]], descriptors: int
) -> Result:
    told = [_read(folder / f"{name}.json") for name in run.names]
    times = np.array([seconds for each in told for _, seconds in each["times"]])
    hub, steps = _read(folder / "hub.json"), sum(each["steps"] for each in told)
    lost = {name: hub[name] for name in COUNTED if hub[name]}
    if steps != hub["steps"]:
        lost["steps"] = steps - hub["steps"]
    warm = [(t, b) for t, b in samples if t >= WARM_UP * samples[-1][0]]
    slope = _median_slope(np.array(warm)) if len(warm) > 2 else 0.0
    return Result(
        rate, 1e3 * float(np.percentile(times, 50)), 1e3 * float(np.percentile(times, 99)),
        60 * float(slope) / 1e6, samples[-1][1] / 1e6, descriptors, hub["duplicate_acts"], lost,
    )  # fmt: skip


def _median_slope(samples: np.ndarray) -> float:
    """Of [N, 2] (time, value): the median over all pairs (Theil and Sen); a short peak does not move it."""
    first, second = np.triu_indices(len(samples), 1)
    times, values = (samples[second] - samples[first]).T
    return float(np.median(values / times))


def stuck_peer(connections: int, seconds: float, repetitions: int) -> float:
    """Share by which a stopped peer slows the others: medians of alternating windows."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        run = Soak(connections, 1, Path(folder), extra=True)
        rates: dict[bool, list[float]] = {False: [], True: []}
        try:
            run.wait_until_all_step()
            assert run.extra is not None
            time.sleep(2.0)
            for turn in range(2 * repetitions):
                stopped = bool(turn % 2)
                run.extra.send_signal(signal.SIGSTOP if stopped else signal.SIGCONT)
                time.sleep(0.5)
                began, first = time.monotonic(), run.steps()
                time.sleep(seconds)
                rates[stopped].append((run.steps() - first) / (time.monotonic() - began))
        finally:
            run.stop()
    return 1 - statistics.median(rates[True]) / statistics.median(rates[False])


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def main() -> int:
    """1 if the acceptance fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 10, 100, 1000])
    parser.add_argument("--actors", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--acceptance", action="store_true")
    parser.add_argument("--short", action="store_true")
    options = parser.parse_args()
    if options.acceptance:
        return _accept(soak(1000, 1, max(120.0, options.seconds), warm=True))
    grid = [(c, a) for c in options.connections for a in options.actors if a <= c]
    if options.short:
        grid, options.seconds = [(1, 1), (100, 4), (1000, 1)], 8.0
    for connections, actors in grid:
        print(soak(connections, actors, options.seconds).line(connections, actors), flush=True)
    slowed = stuck_peer(64, 2.0, 2 if options.short else 5)
    print(f"a stopped peer slows 64 others by {100 * slowed:.1f} % (<= {100 * MAX_SLOWED:.0f} %)", flush=True)
    return 0


def _accept(result: Result) -> int:
    print(result.line(1000, 1))
    ratio = result.p99_ms / result.p50_ms
    print(
        f"lost {result.lost or 'none'} (none); "
        f"{result.slope_mb_per_min:+.2f} MB/min (< {MAX_SLOPE_MB_PER_MIN}); "
        f"p99 is {ratio:.2f} x p50 (< {MAX_P99_RATIO})"
    )
    good = not result.lost and result.slope_mb_per_min < MAX_SLOPE_MB_PER_MIN and ratio < MAX_P99_RATIO
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
