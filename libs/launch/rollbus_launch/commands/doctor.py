"""``rollbus doctor``: what this machine can run and, for each thing it cannot, why and the fix."""

from __future__ import annotations

import argparse
from typing import Any

from rollbus_launch.doctor import all_checks
from rollbus_launch.tables import add_json_flag, show


def add_parser(subparsers: Any) -> None:
    """rollbus doctor"""
    parser = subparsers.add_parser("doctor", help="what this machine can run", description=__doc__)
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """One row per check; exit code 1 if something that every run needs is missing."""
    checks = all_checks()
    show([check.row() for check in checks], as_json=arguments.json)
    if not arguments.json:
        print("needed: yes, every run needs it; no, it is optional: only recipes that use it need it")
    return 1 if any(check.needed and not check.ok for check in checks) else 0
