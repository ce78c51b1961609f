"""``rollbus export RUN_DIR``: a policy as safetensors and ONNX, with the normaliser inside."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rollbus_launch.control import run_paths
from rollbus_launch.tables import add_json_flag, show


def add_parser(subparsers: Any) -> None:
    """rollbus export [RUN_DIR] --out DIR [--checkpoint NAME]"""
    parser = subparsers.add_parser("export", help="export a policy", description=__doc__)
    parser.add_argument("run_dir", nargs="?", help="default: runs/latest")
    parser.add_argument("--out", type=Path, required=True, help="folder to write, which must not exist")
    parser.add_argument("--checkpoint", default="", help="name under checkpoints/; default: best, else last")
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Export and say what is where."""
    from rollbus_launch.export import export
    from rollbus_launch.serve import limit_threads
    from rollbus_launch.session import newest_checkpoint

    limit_threads()
    paths = run_paths(arguments.run_dir)
    which = arguments.checkpoint or newest_checkpoint(paths).name
    card = export(paths, which, arguments.out)
    row = {"folder": str(arguments.out), "inputs": list(card["inputs"]), "outputs": card["outputs"],
           "difference": card["onnx_difference"], "files": list(card["files"])}  # fmt: skip
    show([row], as_json=arguments.json)
    return 0
