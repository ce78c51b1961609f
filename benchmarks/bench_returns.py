"""Whether what trains faster learns as much: returns after equal steps, the plain loop against ours.

    python benchmarks/bench_returns.py [cartpole=200000] [halfcheetah=500000] [--seeds 1 2 3] [--episodes 20]

WORKLOAD=STEPS names what is trained for how long, with the network, the batch and the settings of
`bench_end_to_end.py`. Each seed trains both, one after the other, and evaluates the last policies on whole
episodes without noise. Differences are by seed; their interval is bootstrapped over seeds, then episodes.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
from bench_end_to_end import plain
from learning.runs import rollbus

from rollbus_launch.evaluation.intervals import paired_gain

#: Environment steps of a run.
STEPS = {"cartpole": 200_000, "halfcheetah": 500_000}


def ours(workload: str, steps: int, seed: int, episodes: int, folder: Path) -> list[float]:
    """Returns [episodes] of our last checkpoint."""
    run = str(folder / f"{workload}-{seed}")
    recipe = f"benchmarks/recipes/{workload}.yaml"
    rollbus("train", recipe, f"run.total_steps={steps}", f"run.seed={seed}", "--run-dir", run)
    found = json.loads(rollbus("eval", run, "--checkpoint", "last", "--episodes", str(episodes), "--json"))
    return [float(each["return"]) for each in found["episodes"]]


def compare(workload: str, steps: int, seeds: list[int], episodes: int) -> None:
    """Both contestants on all seeds; prints what came of it."""
    returns: dict[str, list[list[float]]] = {"plain": [], "ours": []}
    seconds = dict.fromkeys(returns, 0.0)
    with tempfile.TemporaryDirectory() as folder:
        for seed in seeds:
            for name in returns:
                began = time.monotonic()
                if name == "plain":
                    found = plain(workload, steps=steps, seed=seed, evaluate=episodes)
                    returns[name].append(found["evaluated"])
                else:
                    returns[name].append(ours(workload, steps, seed, episodes, Path(folder)))
                seconds[name] += time.monotonic() - began
    for name, values in returns.items():
        means = ", ".join(f"{np.mean(each):.1f}" for each in values)
        print(f"{workload}, {steps:,} steps, {name:5}: {means}; in all {seconds[name]:.0f} s", flush=True)
    gain, low, high = paired_gain(returns["plain"], returns["ours"])
    print(f"{workload}: ours over plain {gain:+.1f} (95 % {low:+.1f} to {high:+.1f})", flush=True)


def main() -> None:
    """Compare the workloads asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=[f"{name}={steps}" for name, steps in STEPS.items()])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--episodes", type=int, default=20)
    arguments = parser.parse_args()
    for asked in arguments.workloads:
        workload, _, steps = asked.partition("=")
        compare(workload, int(steps or STEPS[workload]), arguments.seeds, arguments.episodes)


if __name__ == "__main__":
    main()
