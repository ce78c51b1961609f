"""``rollbus plan RECIPE``: predict steps per second, bottleneck and memory, and say what to run."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rollbus_core.cores import num_cores
from rollbus_launch.tables import add_json_flag


def add_parser(subparsers: Any) -> None:
    """rollbus plan RECIPE [key=value ...] [--hosts N --cores N --gpus N] [--costs FILE]"""
    parser = subparsers.add_parser(
        "plan", help="predict the speed of a recipe and say what to run", description=__doc__
    )
    parser.add_argument("recipe", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="env.num_envs=64 ...")
    parser.add_argument("--hosts", type=_positive, default=1, help="machines; default 1")
    parser.add_argument("--cores", type=_positive, help="cores of each; default: those of this machine")
    parser.add_argument(
        "--gpus", type=_count, default=0, help="accelerators of the learner's host; default 0"
    )
    parser.add_argument("--costs", type=Path, help="stage costs from this file instead of measuring")
    parser.add_argument("--save", type=Path, help="write the stage costs to this file")
    parser.add_argument("--fresh", action="store_true", help="measure even if this was measured before")
    parser.add_argument(
        "--episode-steps", type=float, default=0.0,
        help="mean episode length to plan for; default: between that of the untrained policy and the limit",
    )  # fmt: skip
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Costs, then the plan."""
    from rollbus_launch.planning import plan
    from rollbus_launch.planning.layouts import Machines
    from rollbus_launch.planning.report import show_plan

    machines = Machines(arguments.hosts, arguments.cores or num_cores(), arguments.gpus)
    resolved, costs = plan.prepare(
        arguments.recipe, arguments.overrides, costs_file=arguments.costs, fresh=arguments.fresh
    )
    if arguments.save:
        arguments.save.write_text(costs.model_dump_json(indent=1))
    made = plan.make(resolved, costs, machines, episode_steps=arguments.episode_steps)
    if arguments.json:
        print(json.dumps(made.to_data(), indent=1))
    else:
        show_plan(made)
    return 0


def _count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number, 0 or more")
    return int(text)


def _positive(text: str) -> int:
    if _count(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number, 1 or more")
    return int(text)
