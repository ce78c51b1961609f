"""Learning curves of recipes: a picture, a table and JSON in docs/results, with the machine's name.

Each (recipe, seed) is a run of `rollbus train` of at most ten minutes in its own folder; what has a summary
is kept, so that a sweep that was cut goes on. The last checkpoint counts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import machine
import yaml

from rollbus_core.paths import RunPaths
from rollbus_launch.records import draw_curve

ROOT = Path(__file__).resolve().parents[1]
RUNS, RESULTS = ROOT / "runs" / "curves", ROOT / "docs" / "results"
#: Seconds of one run; steps and updates of a smoke run.
LIMIT_S, SMOKE_STEPS, SMOKE_UPDATES = 600, 4096, 5


def rollbus(*arguments: str) -> None:
    """Run the command; CalledProcessError if it fails."""
    subprocess.run([sys.executable, "-m", "rollbus_launch", *arguments], cwd=ROOT, check=True)


def prepared(before: list[str]) -> None:
    """Make what a recipe needs, unless it is there."""
    if before and not (ROOT / before[before.index("--out") + 1]).exists():
        rollbus(*before)


def train(recipe: str, seed: int, settings: list[str], smoke: bool) -> tuple[RunPaths, dict[str, Any]]:
    """One run, or what is left of it; its summary."""
    paths = RunPaths(RUNS / ("smoke" if smoke else "full") / f"{recipe}-{seed}")
    if not paths.summary.exists():
        given = [*settings, f"run.seed={seed}", f"run.wall_limit_s={LIMIT_S}"]
        if smoke:
            data = yaml.safe_load((ROOT / f"recipes/{recipe}.yaml").read_text())
            by_updates = "total_updates" in data.get("run", {})
            given.append(
                f"run.total_updates={SMOKE_UPDATES}" if by_updates else f"run.total_steps={SMOKE_STEPS}"
            )
        rollbus("train", f"recipes/{recipe}.yaml", *given, "--run-dir", str(paths.root))
    return paths, json.loads(paths.summary.read_text())


def row_of(recipe: str, summaries: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and range over seeds of the last checkpoint's mean return."""
    returns = [float(summary["mean_return"]) for summary in summaries]
    return {
        "recipe": recipe, "seeds": len(returns), "mean_return": statistics.fmean(returns),
        "lowest": min(returns), "highest": max(returns),
        "env_steps": max(summary.get("env_steps", 0) for summary in summaries),
        "wall_s": statistics.fmean(summary["wall_s"] for summary in summaries),
    }  # fmt: skip


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown."""
    lines = ["| " + " | ".join(rows[0]) + " |", "|---" * len(rows[0]) + "|"]
    for row in rows:
        cells = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values()]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    """All recipes of benchmarks/curves.yaml, or those named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipes", nargs="*", help="only these")
    parser.add_argument("--smoke", action="store_true", help="a few updates of one seed each")
    parser.add_argument("--minutes", type=float, default=210.0, help="begin no run after this long")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    wanted = yaml.safe_load((ROOT / "benchmarks/curves.yaml").read_text())
    if unknown := sorted(set(arguments.recipes) - set(wanted)):
        parser.error(f"{unknown[0]} is not in benchmarks/curves.yaml; it has {', '.join(wanted)}")
    began, rows, name = time.monotonic(), [], "curves-smoke" if arguments.smoke else "curves"
    arguments.out.mkdir(parents=True, exist_ok=True)
    for recipe in arguments.recipes or wanted:
        entry = wanted[recipe]
        prepared(entry.get("before", []))
        made = []
        for seed in entry["seeds"][: 1 if arguments.smoke else None]:
            if time.monotonic() - began < 60 * arguments.minutes:
                made.append(train(recipe, seed, entry.get("settings", []), arguments.smoke))
        if not made:
            print(f"{recipe}: no time left; start again to go on")
            continue
        draw_curve([paths for paths, _ in made], arguments.out / f"{recipe}.png")
        rows.append(row_of(recipe, [summary for _, summary in made]))
    result = {"machine": machine.describe(), "rows": rows}
    (arguments.out / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    text = f"Last checkpoints, mean return over seeds, on {result['machine']['cpu']}.\n\n{table(rows)}\n"
    (arguments.out / f"{name}.md").write_text("# Learning curves\n\n" + text)
    print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
