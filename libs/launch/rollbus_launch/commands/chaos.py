"""``rollbus chaos RECIPE``: train while things break, and prove that nothing was lost."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from rollbus_launch.tables import add_json_flag, show, show_one


def add_parser(subparsers: Any) -> None:
    """rollbus chaos RECIPE [key=value ...] [--minutes M] [--seed S] [--kinds a,b] [--run-dir DIR]"""
    parser = subparsers.add_parser("chaos", help="train while things break", description=__doc__)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0, help="of the schedule of faults")
    parser.add_argument("--kinds", default="", help="only these faults, with commas; default: all")
    parser.add_argument("--limit", type=float, default=10.0, help="seconds that a recovery may take")
    parser.add_argument("--run-dir", type=Path, help="default: runs/chaos-NAME-TIME")
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """0 if the audit is clean and every recovery was in time."""
    from rollbus_launch.chaos.trial import Trial

    name = f"chaos-{arguments.recipe.stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    trial = Trial(
        arguments.recipe, arguments.overrides, (arguments.run_dir or Path("runs") / name).absolute(),
        minutes=arguments.minutes, seed=arguments.seed, limit_s=arguments.limit,
        kinds=[kind for kind in arguments.kinds.split(",") if kind],
        tell=lambda line: print(line, file=sys.stderr, flush=True),
    )  # fmt: skip
    report = trial.run()
    data = report.to_data()
    if arguments.json:
        print(json.dumps(data, indent=1))
        return 0 if report.passed else 1
    show(data["injected"], as_json=False, title="faults")
    show_one({k: v for k, v in data["audit"].items() if k != "problems"}, title="audit")
    best = "no evaluation" if report.best_return is None else f"best evaluation {report.best_return:.1f}"
    print(
        f"{len(report.injected)} faults of {data['kinds']} kinds, {report.updates} updates, {best}, "
        f"stopped in {report.stop_s:.1f} s"
    )
    for kind, reason in report.skipped.items():
        print(f"left out: {kind}, {reason}")
    for problem in report.problems:
        print(f"FAILED: {problem}")
    return 0 if report.passed else 1
