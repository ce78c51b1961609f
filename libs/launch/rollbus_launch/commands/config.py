"""``rollbus config RECIPE``: print the fully resolved configuration."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rollbus_core.config.load import load
from rollbus_launch.tables import add_json_flag


def add_parser(subparsers: Any) -> None:
    """rollbus config RECIPE [key=value ...]"""
    parser = subparsers.add_parser("config", help="print the resolved configuration", description=__doc__)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """YAML with everything, and what one update consumes."""
    resolved = load(arguments.recipe, arguments.overrides, check_packages=False)
    if arguments.json:
        print(json.dumps(resolved.recipe.model_dump(mode="json"), indent=1))
        return 0
    print(resolved.to_yaml(), end="")
    print(f"# {resolved.feed.summary}")
    return 0
