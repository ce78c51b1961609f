"""Steps per second with 64 to 4096 toy environments; memory and time to the first update of CartPole.

    python benchmarks/bench_scaling.py [--repetitions 5] [--updates 12]

Every update takes the same number of steps, so that only the number of rows differs. Memory is the
proportional set size (PSS) of all processes of the run, the largest sample of it; the time to the first
update begins with the command. Repetitions alternate, medians are printed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROWS = (64, 512, 4096)
STEPS_PER_UPDATE = 1 << 16
WARM_UP_UPDATES = 3
#: Acceptance: share of the steps per second that may be lost, MB, seconds.
MAX_LOSS, MAX_PSS_MB, MAX_FIRST_S = 0.10, 900, 6.0
TOY = """run: {total_steps: %d}
env: {name: toy, kind: discrete, num_envs: %d}
algorithm: {name: ppo, num_steps: %d, epochs: 1, minibatches: 8}
eval: {every_steps: 1000000000}
checkpoint: {every_steps: 1000000000}
"""
CARTPOLE = """run: {total_steps: 60_000}
env: {id: CartPole-v1}
algorithm: {name: ppo, num_steps: 128, epochs: 4, minibatches: 8}
checkpoint: {every_steps: 1000000000}
"""


@dataclass
class Run:
    """What one run gave."""

    steps_per_s: float
    first_update_s: float
    pss_mb: float


def train(recipe: str, folder: Path, limit_s: float = 240.0) -> Run:
    """Run ``rollbus train`` on ``recipe`` in ``folder`` to its end."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "recipe.yaml").write_text(recipe)
    began, pss = time.time(), 0.0
    command = [sys.executable, "-m", "rollbus_launch", "train", "recipe.yaml"]
    with open(folder / "output", "w") as output:
        process = subprocess.Popen(
            command, cwd=folder, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        while process.poll() is None:
            if time.time() - began > limit_s:
                os.killpg(process.pid, signal.SIGKILL)
            pss = max(pss, pss_bytes(process.pid))
            time.sleep(0.25)
    found = list(folder.glob("runs/*/metrics.jsonl"))
    if process.returncode or not found:
        raise SystemExit(f"the run failed:\n{(folder / 'output').read_text()[-2000:]}")
    lines = [json.loads(line) for line in found[0].read_text().splitlines()]
    first, last = lines[min(WARM_UP_UPDATES, len(lines) - 2)], lines[-1]
    rate = (last["env_steps"] - first["env_steps"]) / (last["time"] - first["time"])
    return Run(rate, lines[0]["time"] - began, pss / 1e6)


def pss_bytes(root: int) -> float:
    """Of the process ``root`` and all that descend from it."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    family, total = {root}, 0.0
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    for pid in family:
        with contextlib.suppress(OSError, IndexError):
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            total += 1024.0 * int(rollup.partition("\nPss:")[2].split()[0])
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--updates", type=int, default=12)
    options = parser.parse_args()
    runs: dict[int, list[Run]] = {rows: [] for rows in (*ROWS, 0)}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.repetitions):
            for rows in ROWS:
                total = STEPS_PER_UPDATE * (options.updates + WARM_UP_UPDATES)
                recipe = TOY % (total, rows, STEPS_PER_UPDATE // rows)
                runs[rows].append(train(recipe, Path(folder) / "run"))
            runs[0].append(train(CARTPOLE, Path(folder) / "run"))
    rates = {rows: statistics.median(run.steps_per_s for run in runs[rows]) for rows in ROWS}
    for rows, rate in rates.items():
        print(f"{rows} toy environments: {rate:.0f} steps/s")
    loss = 1 - rates[ROWS[-1]] / rates[ROWS[0]]
    print(f"lost from {ROWS[0]} to {ROWS[-1]}: {100 * loss:.1f} % (<= {100 * MAX_LOSS:.0f} %)")
    pss = statistics.median(run.pss_mb for run in runs[0])
    first = statistics.median(run.first_update_s for run in runs[0])
    print(
        f"CartPole: {pss:.0f} MB PSS (< {MAX_PSS_MB}), first update after {first:.1f} s (< {MAX_FIRST_S:.0f})"
    )


if __name__ == "__main__":
    main()
