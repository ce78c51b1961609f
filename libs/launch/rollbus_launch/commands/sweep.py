"""``rollbus sweep RECIPE --over key=low..high``: search for settings, run by run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from rollbus_launch.tables import add_json_flag, show
from rollbus_wire.errors import ConfigError


def add_parser(subparsers: Any) -> None:
    """rollbus sweep RECIPE [key=value ...] --over KEY=LOW..HIGH[:log] ... [--trials N] [--dir DIR]"""
    parser = subparsers.add_parser("sweep", help="search for settings", description=__doc__)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings of all runs")
    parser.add_argument(
        "--over", action="append", required=True, metavar="KEY=RANGE",
        help="algorithm.learning_rate=1e-4..1e-2:log, algorithm.epochs=2..10, policy.activation=[tanh, relu]",
    )  # fmt: skip
    parser.add_argument("--trials", type=int, default=20, help="runs in all, with those that are there")
    parser.add_argument("--seed", type=int, default=1, help="of the search; a run's is run.seed")
    parser.add_argument("--dir", type=Path, help="folder of its runs; default: runs/sweep-NAME")
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """A line per run, then a table, the best first."""
    from rollbus_launch.sweep import Sweep, space

    if arguments.trials < 1:
        raise ConfigError(f"--trials {arguments.trials}: must be at least 1")
    folder = arguments.dir or Path("runs") / f"sweep-{arguments.recipe.stem}"
    spaces = [space(text) for text in arguments.over]
    sweep = Sweep(
        arguments.recipe, arguments.overrides, spaces, folder, seed=arguments.seed, train=_train
    )  # fmt: skip
    rows = sweep.run(arguments.trials, lambda row: print(row, file=sys.stderr, flush=True))
    show(rows, as_json=arguments.json, title="" if arguments.json else "the best first")
    return 0


def _train(recipe: Path, overrides: list[str], folder: Path) -> dict[str, Any]:
    """One run in a process of its own."""
    import json

    from rollbus_core.paths import RunPaths
    from rollbus_launch.control import wait_until_ended
    from rollbus_launch.pipeline.run import call

    wait_until_ended(RunPaths(folder))  # else the trial of a sweep that was just killed would fail
    call(folder.name, ["train", str(recipe), *overrides, "--run-dir", str(folder)])
    summary: dict[str, Any] = json.loads(RunPaths(folder).summary.read_text())
    if "mean_return" not in summary:
        raise ConfigError(
            f"{folder} was not evaluated (ended by {summary['stopped_by']}), so it has no result"
        )
    return summary
