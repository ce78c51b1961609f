"""What the delivery promise costs: training with it and without, in turn.

    python benchmarks/bench_durability.py [RECIPE] [--repeats 5] [--seconds 15] [--json FILE]

With: the defaults, and once more with `run.audit=true`. Without: no log of the store, no digests of chunks
(`undurable/`), no checkpoints by time. Everything else is the same command. Steps/s as in summary.json,
between the first and the last update.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from machine import describe

HERE = Path(__file__).resolve().parent
RECIPE = HERE.parent / "recipes" / "halfcheetah_ppo.yaml"
#: Name -> overrides.
CONTESTANTS = {
    "without": ("checkpoint.every_s=0",),
    "with": (),
    "with, audited": ("run.audit=true",),
}


def rate(recipe: Path, name: str, seconds: float, overrides: list[str]) -> float:
    """Steps/s of one run."""
    environment = dict(os.environ)
    if name == "without":
        environment["PYTHONPATH"] = os.pathsep.join(
            [str(HERE / "undurable"), os.environ.get("PYTHONPATH", "")]
        )
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "rollbus_launch", "train", str(recipe), f"run.wall_limit_s={seconds}",
            "run.total_steps=1000000000", "eval.episodes=1", "deploy.layout=stated", *CONTESTANTS[name],
            *overrides, "--run-dir", f"{folder}/run",
        ]  # fmt: skip
        subprocess.run(command, env=environment, cwd=folder, check=True, capture_output=True)
        summary = json.loads(Path(folder, "run", "summary.json").read_text())
    if not summary.get("env_steps_per_s"):
        sys.exit(f"{recipe} made no update within {seconds:g} s; give it more --seconds")
    return float(summary["env_steps_per_s"])


def main() -> None:
    """Print medians and ratios; each ratio is within one repetition."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", type=Path, nargs="?", default=RECIPE)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rates: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    for repetition in range(arguments.repeats):
        # Whoever goes first differs, so that a machine that gets busier favours nobody.
        names = list(CONTESTANTS)
        for name in names[repetition % len(names) :] + names[: repetition % len(names)]:
            rates[name].append(rate(arguments.recipe, name, arguments.seconds, arguments.overrides))
            print(f"{name:>14}: {rates[name][-1]:10,.0f} steps/s", flush=True)
    ratios = {name: [a / b for a, b in zip(rates[name], rates["without"])] for name in CONTESTANTS}
    for name in CONTESTANTS:
        median, ratio = statistics.median(rates[name]), statistics.median(ratios[name])
        print(f"{name:>14}: median {median:10,.0f} steps/s, {ratio:.3f} of without")
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"rates": rates, "ratios": ratios, "machine": describe()}, indent=1)
        )


if __name__ == "__main__":
    main()
