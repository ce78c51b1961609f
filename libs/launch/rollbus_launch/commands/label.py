"""``rollbus label DATASET``: say of each decision whether it was good, by a value model (docs/data.md)."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rollbus_launch.tables import add_json_flag, show


def add_parser(subparsers: Any) -> None:
    """rollbus label DATASET --value DIR --out DIR [--permute SEED]"""
    parser = subparsers.add_parser("label", help="label a data set", description=__doc__)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--value", type=Path, required=True, help="folder of a value model (rollbus value)")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--permute", type=int, default=0, metavar="SEED", help="mix the labels up: a sham")
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Label and say how many are good."""
    from rollbus_launch.label import label
    from rollbus_launch.serve import limit_threads

    limit_threads()
    card = label(arguments.dataset, arguments.value, arguments.out, arguments.permute)
    show([{key: card[key] for key in ("by", "frames", "good", "content")}], as_json=arguments.json)
    return 0
