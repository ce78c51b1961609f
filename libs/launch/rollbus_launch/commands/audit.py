"""``rollbus audit``: was every acknowledged step learned from once, or dropped for a reason?"""

from __future__ import annotations

import argparse
from typing import Any

from rollbus_launch.audit import audit
from rollbus_launch.control import run_paths
from rollbus_launch.tables import add_json_flag, show, show_one
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
    if arguments.json:
        show([row | {"problems": problems}], as_json=True)
    else:
        show_one(row)
        for problem in problems:
            print(problem)
    return 0 if verdict.good else 1
