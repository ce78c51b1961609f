"""``rollbus reward DATASET``: train a model that says how good an observation is (docs/algorithms.md)."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rollbus_launch.tables import add_json_flag, show
from rollbus_wire.errors import ConfigError


def add_parser(subparsers: Any) -> None:
    """rollbus reward DATASET [DATASET ...] [key=value ...] --by NAME --out DIR"""
    parser = subparsers.add_parser("reward", help="train a reward model of data sets", description=__doc__)
    parser.add_argument(
        "overrides", nargs="+", metavar="DATASET|key=value", help="data sets; settings of the model"
    )
    parser.add_argument("--by", default="progress", help="kind of model: progress, success, ...")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Train, and say how well it does on episodes that were held back."""
    from rollbus_launch import reward
    from rollbus_launch.label import settings
    from rollbus_launch.serve import limit_threads

    limit_threads()
    data = [Path(text) for text in arguments.overrides if "=" not in text]
    if not data:
        raise ConfigError("name the data sets to learn from (rollbus collect makes them)")
    config = settings(reward.MODELS, arguments.by, [text for text in arguments.overrides if "=" in text])
    card = reward.train_reward(data, arguments.by, config, arguments.out)
    told = {key: card[key] for key in ("by", "episodes", "datasets", "content")}
    show([{**told, **card["figures"]}], as_json=arguments.json)
    return 0
