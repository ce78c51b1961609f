"""Predicted against measured steps per second, on configurations drawn from a seed.

    python benchmarks/bench_plan.py --seed 7 [--num 6] [--only K] [--runs 1] [--seconds 8] [--json FILE]

Each configuration is measured (rehearsals and trials), predicted, and run for real with `rollbus train`; the
first seconds of a run do not count. With several runs their median counts, and their spread (fastest over
slowest, less one) tells how well any prediction can do. The space is `draw`. Nothing but the episode length
is taken from the runs, and only for the second prediction: how long episodes become is up to learning, not to
the machine. Beside them stands what the model says alone, without the rate of the plan's own trials. Where
other programs used cores meanwhile, figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rollbus_launch.processes import cpu_use

#: Of a run, updates before this are not counted.
SKIP_S = 2.0
ENVIRONMENTS = (
    [["env.name=gymnasium", "env.id=CartPole-v1"]],
    [["env.name=gymnasium", "env.id=HalfCheetah-v5"]],
    [["env.name=toy", f"env.kind={kind}"] for kind in ("discrete", "continuous", "dict")],
)
FUSED = "deploy.processes=[broker, hub+actor, learner]"
APART = "deploy.processes=[broker, hub, actor, learner]"


def draw(generator: random.Random) -> list[str]:
    """The settings of one configuration."""
    num_slices = generator.choice([1, 2, 3, 4])
    hubs = generator.choice([1, 2] if num_slices in (2, 4) else [1])
    num_envs = num_slices * generator.choice([n for n in range(2, 65) if 8 <= n * num_slices <= 64])
    num_steps = generator.choice([16, 32, 64, 128])
    wanted = generator.choice([2, 4, 8])
    return [
        *generator.choice(generator.choice(ENVIRONMENTS)),
        f"env.num_envs={num_envs}", f"env.num_slices={num_slices}", f"env.hubs={hubs}",
        f"algorithm.num_steps={num_steps}", f"algorithm.epochs={generator.choice([1, 2, 4, 8])}",
        f"algorithm.minibatches={wanted}", f"algorithm.max_lag={generator.choice([0, 1])}",
        f"policy.hidden={generator.choice([[32, 32], [64, 64], [128, 128], [256]])}",
        generator.choice([FUSED, APART]),
    ]  # fmt: skip


def run_for_real(recipe: Path, settings: Sequence[str], seconds: float, folder: Path) -> dict[str, float]:
    """Steps per second and mean episode length of a real run, behind its start."""
    limits = [
        f"run.wall_limit_s={seconds}",
        "run.total_steps=1000000000",
        "eval.episodes=1",
        "eval.num_envs=1",
    ]
    command = [sys.executable, "-m", "rollbus_launch", "train", str(recipe), *settings, *limits]
    began_s, machine_s, own_s = time.monotonic(), cpu_use.machine_s(), _children_s()
    done = subprocess.run(
        [*command, "--run-dir", str(folder)], capture_output=True, text=True, timeout=120 + seconds
    )
    if done.returncode:
        raise SystemExit(f"the run failed with {settings}:\n{done.stderr[-2000:]}")
    others_s = cpu_use.machine_s() - machine_s - (_children_s() - own_s)
    others_cores = max(0.0, others_s) / (time.monotonic() - began_s)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    counted = [row for row in rows if row["time"] >= rows[0]["time"] + SKIP_S]
    if len(counted) < 3:
        raise SystemExit(f"only {len(counted)} updates after {SKIP_S} s; give more --seconds ({settings})")
    steps = counted[-1]["env_steps"] - counted[0]["env_steps"]
    episodes = sum(row.get("episodes", 0) for row in counted)
    duration_s = counted[-1]["time"] - counted[0]["time"]
    return {
        "steps_per_s": steps / duration_s,
        "episode_steps": steps / max(1, episodes),
        "others_cores": others_cores,
    }


def _children_s() -> float:
    """CPU seconds of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def compare(recipe: Path, settings: Sequence[str], seconds: float, runs: int, folder: Path) -> dict[str, Any]:
    """One configuration: predicted, measured, predicted again with the runs' episode length."""
    plan = [sys.executable, "-m", "rollbus_launch", "plan", str(recipe), *settings, "--json"]
    costs, began = folder / "costs.json", time.monotonic()
    blind = json.loads(
        subprocess.run([*plan, "--fresh", "--save", str(costs)], check=True, capture_output=True).stdout
    )
    plan_s = time.monotonic() - began
    real = [run_for_real(recipe, settings, seconds, folder / f"run-{number}") for number in range(runs)]
    rates = [each["steps_per_s"] for each in real]
    measured, episode_steps = median(rates), median(each["episode_steps"] for each in real)
    known = [*plan, "--costs", str(costs), "--episode-steps", f"{episode_steps:.1f}"]
    informed = json.loads(subprocess.run(known, check=True, capture_output=True).stdout)
    alone = blind["steps_per_s"] / blind["factor"]
    return {
        "measured": measured, "runs": rates, "spread": max(rates) / min(rates) - 1,
        "episode_steps": episode_steps, "plan_s": plan_s, "basis": blind["basis"],
        "others_cores": max(each["others_cores"] for each in real),
        "predicted": blind["steps_per_s"], "error": blind["steps_per_s"] / measured - 1,
        "informed": informed["steps_per_s"], "informed_error": informed["steps_per_s"] / measured - 1,
        "alone": alone, "alone_error": alone / measured - 1,
        "bottleneck": blind["bottleneck"], "settings": list(settings),
    }  # fmt: skip


def told(result: dict[str, Any]) -> str:
    """One configuration in words."""
    spread = f" (spread {result['spread']:.0%})" if len(result["runs"]) > 1 else ""
    return (
        f"predicted {result['predicted']:,.0f}, measured {result['measured']:,.0f}{spread}: "
        f"{result['error']:+.1%} (with episodes of {result['episode_steps']:.0f} steps, as in the run: "
        f"{result['informed_error']:+.1%}; the model alone: {result['alone_error']:+.1%}), bottleneck "
        f"{result['bottleneck']}, planned in {result['plan_s']:.0f} s, others used "
        f"{result['others_cores']:.2f} cores during a run at most\n"
        f"   {' '.join(result['settings'])}\n   {result['basis']}"
    )


def main() -> int:
    """Print one line per configuration; exit code 1 if any error is above --limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--num", type=int, default=6)
    parser.add_argument("--only", type=int, default=0, help="of the --num drawn, this one; 0: all")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--limit", type=float, default=0.15)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    generator = random.Random(arguments.seed)
    results = []
    for number in range(arguments.num):
        settings = draw(generator)
        if arguments.only not in (0, number + 1):
            continue
        with tempfile.TemporaryDirectory() as name:
            recipe = Path(name) / "drawn.yaml"
            recipe.write_text("algorithm: {name: ppo}\n")
            result = compare(recipe, settings, arguments.seconds, arguments.runs, Path(name))
        results.append(result)
        print(f"{number + 1}: {told(result)}", flush=True)
    worst = max(abs(result["error"]) for result in results)
    print(f"largest error {worst:.1%} of {len(results)} (limit {arguments.limit:.0%})")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))
    return int(worst > arguments.limit)


if __name__ == "__main__":
    sys.exit(main())
