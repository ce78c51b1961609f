"""``rollbus stop``: end a run in order (checkpoint, drain, close)."""

from __future__ import annotations

import argparse
from typing import Any

from rollbus_launch.control import Control, run_paths, wait_until_ended
from rollbus_launch.tables import add_json_flag, show
from rollbus_wire.errors import DeadlineExceeded


def add_parser(subparsers: Any) -> None:
    """rollbus stop [RUN_DIR]"""
    parser = subparsers.add_parser("stop", help="end a run in order", description=__doc__)
    parser.add_argument("run_dir", nargs="?", help="default: runs/latest")
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds to wait for the end")
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Ask, then wait until no process of the run is left."""
    paths = run_paths(arguments.run_dir, reads=False)
    with Control(paths) as control:
        control.command("stop")
    if not wait_until_ended(paths, arguments.timeout):
        raise DeadlineExceeded(f"the run is still active after {arguments.timeout:.0f} s; see rollbus ps")
    if arguments.json:
        show([{"stopped": str(paths.root)}], as_json=True)
    else:
        print(f"stopped: {paths.root}")
    return 0
