"""``rollbus run PIPELINE``: the stages of one file; what is finished stays."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from rollbus_launch.tables import add_json_flag, show


def add_parser(subparsers: Any) -> None:
    """rollbus run PIPELINE [--dir DIR] [--redo STAGE]"""
    parser = subparsers.add_parser("run", help="run a pipeline", description=__doc__)
    parser.add_argument("pipeline", type=Path)
    parser.add_argument("--dir", type=Path, help="folder of its artefacts; default: runs/NAME")
    parser.add_argument("--redo", default="", metavar="STAGE", help="make it and what follows anew")
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """One line per stage while it runs, a table at the end."""
    from rollbus_launch.pipeline import file
    from rollbus_launch.pipeline.run import Runner, StageFailed

    began = time.monotonic()
    folder = arguments.dir or Path("runs") / arguments.pipeline.stem
    runner = Runner(
        file.read(arguments.pipeline), folder, lambda line: print(line, file=sys.stderr, flush=True)
    )
    try:
        found = runner.run(arguments.redo)
    except StageFailed as error:
        print(f"rollbus run: {error}", file=sys.stderr)
        return error.exit_code if error.exit_code > 0 else 1
    rows = [
        {"stage": name, "kind": a.kind, "content": a.content[:12], "from": list(a.inputs), "wall_s": a.wall_s,
         "folder": a.folder}
        for name, a in found.items()
    ]  # fmt: skip
    show([a.model_dump() for a in found.values()] if arguments.json else rows, as_json=arguments.json)
    if not arguments.json:
        for name, stage in runner.pipeline.stages.items():
            stage.show(Path(found[name].folder))
        print(f"{len(rows)} stages, {time.monotonic() - began:.1f} s; records: {folder}/STAGE.json")
    return 0
