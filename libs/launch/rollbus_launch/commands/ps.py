"""``rollbus ps``: the services of a run, what they do, and which side to scale."""

from __future__ import annotations

import argparse
from typing import Any

from rollbus_launch.control import Control, run_paths
from rollbus_launch.processes import silence, stacks
from rollbus_launch.progress import advice, awaited, bottleneck
from rollbus_launch.tables import add_json_flag, show

#: Left out of a table that is too wide, the first ones first.
_SPARE = ("loop_lag_s", "host", "stage_s", "pid", "stage", "failure", "slices")


def add_parser(subparsers: Any) -> None:
    """rollbus ps [RUN_DIR]"""
    parser = subparsers.add_parser("ps", help="list the services of a run", description=__doc__)
    parser.add_argument("run_dir", nargs="?", help="default: runs/latest")
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """One row per member."""
    paths = run_paths(arguments.run_dir, reads=False)
    with Control(paths) as control:
        members = control.members().members
    rows = [row(member) for member in members]
    show(rows, as_json=arguments.json, spare=_SPARE)
    if not arguments.json:
        print(f"bottleneck: {bottleneck(members)}")
        if text := advice(members):
            print(f"to go faster: {text}")
        for line in awaited(members):
            print(line)
        for process in silence.lost(members).values():
            print(silence.told(process, stacks.read(paths, process[0]["name"], process[0]["pid"])))
    return 0


def row(member: dict[str, Any]) -> dict[str, Any]:
    """What is shown of a member of the registry."""
    stats = member.get("stats") or {}
    held = stats.get("held")
    return {
        "name": member["name"],
        "pid": member["pid"],
        "host": member["host"],
        "state": member["state"],
        "stage": member.get("stage"),
        "stage_s": member.get("since_s"),
        "steps_per_s": stats.get("steps_per_s"),
        "busy": stats.get("busy"),
        "loop_lag_s": stats.get("loop_lag_s"),
        "slices": list(held) if isinstance(held, dict) else [s["slice"] for s in member.get("slices") or []],
        "failure": (member.get("failure") or "").partition("\n")[0] or None,
    }
