"""Training end to end on two cores against the plain loop and against the machine's bound.

    python benchmarks/bench_end_to_end.py [WORKLOAD ...] [--repeats 5] [--seconds 8] [--json FILE]

Repetitions alternate: the plain loop, then each layout of ours, at lag 0 and 1. With s, i, u
(microseconds per step that the plain loop spends in stepping, inference and update, of the same
repetition) two cores could do min(2 / (s + i + u), 1 / u) at lag 1 and 1 / ((s + i) / 2 + u) at lag 0.
On frames the plain loop has two threads, which suit it best, and there is no such bound.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from machine import describe

HERE = Path(__file__).resolve().parent
WORKLOADS = ("cartpole", "halfcheetah", "pixels")
#: Layouts that are tried: name -> overrides.
TWO = ("env.hubs=2", "actor.count=2", "env.num_slices=2", "deploy.processes=[broker,hub+actor,learner]")
LAYOUTS: dict[str, tuple[str, ...]] = {
    "auto": (),
    "fused": ("deploy.processes=[broker,hub+actor,learner]", "env.num_slices=1"),
    "two fused": TWO,
    "apart": ("deploy.processes=[broker,hub,actor,learner]",),
}
#: Frames: the learner's convolutions take both cores while it learns.
IMAGE_LAYOUTS: dict[str, tuple[str, ...]] = {
    "float32": ("learner.threads=2",),
    "bf16": ("learner.threads=2", "learner.precision=bf16"),
}
#: Threads of the plain loop that suit it best.
THREADS = {"pixels": 2}
#: Updates that are left out: imports, first allocations.
WARM_UP_UPDATES = 8


@dataclass
class Series:
    """Figures of one contestant, one per repetition."""

    rates: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    of_bound: list[float] = field(default_factory=list)

    def median(self, name: str) -> float:
        return statistics.median(getattr(self, name))


def plain(workload: str, **options: float) -> dict[str, Any]:
    """One run of the plain loop with ``options``: what it printed."""
    given = [f"--{name}={value}" for name, value in options.items()]
    threads = f"--threads={THREADS.get(workload, 1)}"
    command = [sys.executable, str(HERE / "plain_loop.py"), workload, *given, threads]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment())
    return dict(json.loads(done.stdout.splitlines()[-1]))


def ours(workload: str, overrides: tuple[str, ...], seconds: float, folder: Path) -> float:
    """Steps per second of one run, between its first update after warm-up and its last."""
    run = folder / f"run-{time.monotonic_ns()}"
    command = [
        sys.executable, "-m", "rollbus_launch", "train", str(HERE / "recipes" / f"{workload}.yaml"),
        "--run-dir", str(run), "run.resume=never", *overrides,
    ]  # fmt: skip
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment(), cwd=folder
    )
    try:
        rows = wait_for_rows(process, run / "metrics.jsonl", seconds)
    finally:
        process.terminate()
        process.wait(30)
    first, last = rows[0], rows[-1]
    return float((last["env_steps"] - first["env_steps"]) / (last["time"] - first["time"]))


def wait_for_rows(process: subprocess.Popen[str], path: Path, seconds: float) -> list[dict[str, Any]]:
    """The updates of a run after its warm-up, once they span ``seconds``."""
    deadline = time.monotonic() + 60 + 20 * seconds
    while time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.25)
        lines = path.read_text().splitlines()[WARM_UP_UPDATES:-1] if path.exists() else []
        if len(lines) >= 2:
            rows = [json.loads(line) for line in (lines[0], lines[-1])]
            if rows[-1]["time"] - rows[0]["time"] >= seconds:
                return rows
    said = process.stderr.read() if process.poll() is not None and process.stderr else "it made no progress"
    raise RuntimeError(f"the run {path.parent} did not get there:\n{said}")


def environment() -> dict[str, str]:
    """One thread per process, and this folder's modules for those who need them."""
    paths = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}


def bound(parts: dict[str, float], lag: int) -> float:
    """Steps per second that two cores could do."""
    s, i, u = (parts[name] * 1e-6 for name in "siu")
    return min(2 / (s + i + u), 1 / u) if lag else 1 / ((s + i) / 2 + u)


def measure(
    workload: str, layouts: list[str], repeats: int, seconds: float, lags: list[int]
) -> dict[str, Any]:
    """All repetitions of one workload."""
    known = IMAGE_LAYOUTS if workload == "pixels" else {name: LAYOUTS[name] for name in layouts}
    series = {(layout, lag): Series() for layout in known for lag in lags}
    loops = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(repeats):
            loops.append(plain(workload, seconds=seconds))
            for (layout, lag), found in series.items():
                overrides = (*known[layout], f"algorithm.max_lag={lag}")
                rate = ours(workload, overrides, seconds, Path(folder))
                found.rates.append(rate)
                found.ratios.append(rate / loops[-1]["steps_per_s"])
                found.of_bound.append(rate / bound(loops[-1], lag))
    return report(workload, loops, series)


def report(
    workload: str, loops: list[dict[str, float]], series: dict[tuple[str, int], Series]
) -> dict[str, Any]:
    """Print the medians and return them."""
    middle = {name: statistics.median(loop[name] for loop in loops) for name in ("steps_per_s", *"siu")}
    print(
        f"{workload}: plain loop {middle['steps_per_s']:,.0f} steps/s; per step: stepping {middle['s']:.1f}, "
        f"inference {middle['i']:.1f}, update {middle['u']:.1f} us"
    )
    rows = []
    for (layout, lag), found in series.items():
        rows.append(
            {
                "layout": layout, "lag": lag, "steps_per_s": found.median("rates"), "rates": found.rates,
                "over_plain": found.median("ratios"), "of_bound": found.median("of_bound"),
            }
        )  # fmt: skip
        bounded = "" if workload in THREADS else f", {rows[-1]['of_bound']:.0%} of the bound"
        print(
            f"  {layout:10} lag {lag}: {rows[-1]['steps_per_s']:9,.0f} steps/s = "
            f"{rows[-1]['over_plain']:.2f} x plain{bounded}"
        )
    return {"workload": workload, "plain": middle, "ours": rows}


def main() -> None:
    """Measure the workloads asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--layouts", nargs="+", choices=list(LAYOUTS), default=list(LAYOUTS))
    parser.add_argument("--lags", nargs="+", type=int, default=[1, 0])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results = [
        measure(workload, arguments.layouts, arguments.repeats, arguments.seconds, arguments.lags)
        for workload in arguments.workloads
    ]
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": describe(), "end_to_end": results}, indent=1))


if __name__ == "__main__":
    main()
