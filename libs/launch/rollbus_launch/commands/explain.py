"""``rollbus explain KEY``: what a setting means, its value and where that comes from."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rollbus_core.config.explain import explain
from rollbus_core.config.load import load
from rollbus_launch.tables import add_json_flag, show


def add_parser(subparsers: Any) -> None:
    """rollbus explain KEY [--recipe RECIPE] [key=value ...]"""
    parser = subparsers.add_parser("explain", help="explain a setting", description=__doc__)
    parser.add_argument("key", help="a dotted key (algorithm.learning_rate) or a section (algorithm)")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--recipe", type=Path, help="show the value it has there and its file and line")
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """One row per key."""
    resolved = load(arguments.recipe, arguments.overrides) if arguments.recipe else None
    show(explain(arguments.key, resolved), as_json=arguments.json)
    return 0
