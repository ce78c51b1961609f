"""``rollbus collect RECIPE``: run episodes and write them as a LeRobot dataset."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rollbus_core.config.models import MAX_SEED
from rollbus_launch.tables import add_json_flag, show
from rollbus_wire.errors import ConfigError


def add_parser(subparsers: Any) -> None:
    """rollbus collect RECIPE [key=value ...] --out DIR [--policy P] [--episodes N] [--successful-only]"""
    parser = subparsers.add_parser("collect", help="run episodes into a dataset", description=__doc__)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="env.num_envs=8 ...")
    parser.add_argument("--out", type=Path, required=True, help="folder of the dataset")
    parser.add_argument(
        "--policy", default="script",
        help="script (the environment's expert; default), random, a run folder, or module:function of "
        "observations [B, ...] per key that gives actions [B, ...]",
    )  # fmt: skip
    parser.add_argument("--episodes", type=int, default=20, help="episodes to run")
    parser.add_argument("--seed", type=int, default=1, help="seed of the episode list; never an evaluation's")
    parser.add_argument("--mode", choices=("deterministic", "stochastic"), default="deterministic")
    parser.add_argument("--successful-only", action="store_true", help="keep episodes that succeeded")
    parser.add_argument("--append", action="store_true", help="add to a dataset that is there")
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Collect and print what came of it."""
    from rollbus_launch.collect import collect
    from rollbus_launch.evaluation.evaluate import Settings
    from rollbus_launch.serve import limit_threads

    limit_threads()
    if arguments.episodes < 1:
        raise ConfigError(f"--episodes {arguments.episodes}: must be at least 1")
    if not 0 <= arguments.seed <= MAX_SEED:
        raise ConfigError(f"--seed {arguments.seed}: must be at least 0 and at most {MAX_SEED}")
    settings = Settings(arguments.episodes, 16, arguments.seed, arguments.mode)
    result = collect(
        arguments.recipe, arguments.overrides, arguments.policy, arguments.out, settings,
        append=arguments.append, successful_only=arguments.successful_only,
    )  # fmt: skip
    show([asdict(result)], as_json=arguments.json)
    return 0
