"""``rollbus annotate SOURCE --column NAME``: attach late rewards to a running training."""

from __future__ import annotations

import argparse
from typing import Any

from rollbus_core.config.models import RewardConfig
from rollbus_launch.control import run_paths
from rollbus_wire.errors import ConfigError


def add_parser(subparsers: Any) -> None:
    """rollbus annotate SOURCE [RUN_DIR] --column NAME [--form FORM] [--index N]"""
    parser = subparsers.add_parser("annotate", help="attach late rewards to a run", description=__doc__)
    parser.add_argument("source", help="module:function, or the folder of a reward model")
    parser.add_argument("run_dir", nargs="?", help="default: runs/latest")
    parser.add_argument(
        "--column", required=True, help="NAME of a source late:NAME of the run's learner.rewards"
    )
    parser.add_argument(
        "--form", default="auto", choices=["auto", "shaping", "each", "end"], help="of a model"
    )
    parser.add_argument(
        "--index", type=int, default=0, help="number of this one, where several share a column"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serve until the run ends."""
    from rollbus_launch.annotate import annotate
    from rollbus_launch.serve import limit_threads

    limit_threads()
    reward = RewardConfig(source=arguments.source, form=arguments.form)
    if reward.kind == "late":
        raise ConfigError(f"{arguments.source} is what is to be attached; name a function or a model")
    return annotate(run_paths(arguments.run_dir), reward, arguments.column, arguments.index)
