"""``rollbus compare RUN_DIR ...``: what several runs came to, with intervals; --curve FILE draws them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rollbus_launch.compare import compare_rows
from rollbus_launch.control import run_paths
from rollbus_launch.records import draw_curve, why_no_curve
from rollbus_launch.tables import add_json_flag, show


def add_parser(subparsers: Any) -> None:
    """rollbus compare RUN_DIR ... [--curve FILE]"""
    parser = subparsers.add_parser("compare", help="put runs side by side", description=__doc__)
    parser.add_argument("run_dirs", nargs="+", metavar="RUN_DIR")
    parser.add_argument("--curve", type=Path, metavar="FILE", help="draw their curves into this PNG")
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the table, and draw the curves if that was asked for."""
    runs = [run_paths(folder) for folder in arguments.run_dirs]
    show(compare_rows(runs), as_json=arguments.json)
    if arguments.curve:
        drawn = draw_curve(runs, arguments.curve)
        if not arguments.json:
            print(f"curve: {arguments.curve if drawn else f'- ({why_no_curve()})'}")
    return 0
