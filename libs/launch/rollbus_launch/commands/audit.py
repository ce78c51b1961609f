"""``rollbus audit``: was every acknowledged step learned from once, or dropped for a reason?"""

from __future__ import annotations

import argparse
from typing import Any

from rollbus_launch.audit import audit
from rollbus_launch.control import run_paths
from rollbus_launch.tables import add_json_flag, show
from rollbus_wire.errors import ConfigError


def add_parser(subparsers: Any) -> None:
    """rollbus audit [RUN_DIR]"""
    parser = subparsers.add_parser("audit", help="check a run's record of every step", description=__doc__)
    parser.add_argument("run_dir", nargs="?", help="default: runs/latest")
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """One row; exit code 1 if a step is duplicated or unexplained."""
    folder = run_paths(arguments.run_dir).audit
    if not any(folder.glob("*.jsonl")):
        raise ConfigError(f"{folder} has no record to check: train with run.audit=true")
    verdict = audit(folder)
    row = verdict.to_data()
    problems = row.pop("problems")
    for name in ("dropped", "refused"):
        if not arguments.json:
            row[name] = ", ".join(f"{reason} {num}" for reason, num in sorted(row[name].items())) or "-"
    show([row | ({"problems": problems} if arguments.json else {})], as_json=arguments.json)
    for problem in problems if not arguments.json else ():
        print(problem)
    return 0 if verdict.good else 1
