"""``rollbus value DATASET``: train the value model that will label it (docs/data.md)."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rollbus_launch.stages.value import Config
from rollbus_launch.tables import add_json_flag, show


def add_parser(subparsers: Any) -> None:
    """rollbus value DATASET [key=value ...] --by NAME --out DIR"""
    parser = subparsers.add_parser("value", help="train a value model of a data set", description=__doc__)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings of the labeller")
    parser.add_argument("--by", default=Config.model_fields["by"].default, help="labeller: recap, steam, ...")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Train and say of what."""
    from rollbus_launch import label
    from rollbus_launch.serve import limit_threads

    limit_threads()
    config = label.settings(label.LABELLERS, arguments.by, arguments.overrides)
    card = label.train_value(arguments.dataset, arguments.by, config, arguments.out)
    show([{key: card[key] for key in ("by", "episodes", "dataset", "content")}], as_json=arguments.json)
    return 0
