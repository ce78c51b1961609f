"""``rollbus eval RUN_DIR``: evaluate a checkpoint on an exact list of episodes."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollbus_core.checkpoints import listed
from rollbus_core.config.load import Resolved, load_resolved
from rollbus_core.config.models import MAX_SEED
from rollbus_core.datasets.files import replace, to_json
from rollbus_launch.control import run_paths
from rollbus_launch.resuming import settings_of
from rollbus_launch.session import newest_checkpoint
from rollbus_launch.tables import add_json_flag, show
from rollbus_wire.errors import ConfigError

if TYPE_CHECKING:
    from rollbus_launch.evaluation.evaluate import Settings


def add_parser(subparsers: Any) -> None:
    """rollbus eval RUN_DIR [--episodes N] [--num-envs N] [--mode M] [--checkpoint NAME]"""
    parser = subparsers.add_parser("eval", help="evaluate a checkpoint", description=__doc__)
    parser.add_argument("run_dir", nargs="?", help="default: runs/latest")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="eval.num_envs=8 ...")
    parser.add_argument("--episodes", type=int, help="default: eval.episodes of the run")
    parser.add_argument("--num-envs", type=int, help="rows at once; does not change results")
    parser.add_argument("--seed", type=int, help="seed of the episode list")
    parser.add_argument("--mode", choices=("deterministic", "stochastic"))
    parser.add_argument("--checkpoint", default="", help="name under checkpoints/; default: best, else last")
    parser.add_argument("--out", type=Path, help="write the result as JSON to this file, too")
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Evaluate and print mean return, interval, success and the episodes."""
    from rollbus_launch.evaluation.evaluate import evaluate
    from rollbus_launch.serve import limit_threads

    limit_threads()
    if arguments.run_dir and "=" in arguments.run_dir:
        arguments.overrides.insert(0, arguments.run_dir)
        arguments.run_dir = None
    paths = run_paths(arguments.run_dir)
    checkpoint = (
        paths.checkpoints / arguments.checkpoint if arguments.checkpoint else newest_checkpoint(paths)
    )
    resolved = load_resolved(settings_of(checkpoint, paths), arguments.overrides)
    settings = _settings(arguments, resolved)
    if not checkpoint.exists():
        names = ", ".join(path.name for path in listed(paths.checkpoints))
        known = f"there are {names}" if names else "the run has saved no checkpoint yet"
        raise ConfigError(f"{checkpoint} does not exist; {known}")
    result = evaluate(checkpoint.resolve(), resolved, settings).to_data()
    if arguments.out:
        replace(arguments.out, to_json(result))
    if arguments.json:
        print(json.dumps(result, indent=1))
        return 0
    if not arguments.out:
        show(result["episodes"], as_json=False)
    print(f"mean return {result['mean_return']:.2f} ± {result['ci95']:.2f} (95 %), {result['mode']}, "
          f"{len(result['episodes'])} episodes of {checkpoint}")  # fmt: skip
    if result["lost"]:
        print(f"{result['lost']} of them LOST, because the environment failed: no success, in no mean")
    if result["tasks"]:
        show(_task_rows(result["tasks"]), as_json=False)
    if result["success_rate"] is not None:
        print(f"success rate {result['success_rate']:.1%} "
              f"(once {result['success_once']:.1%}, at end {result['success_at_end']:.1%})")  # fmt: skip
    return 0


def _task_rows(tasks: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for name, each in tasks.items():
        interval, rate = each["success_ci95"], each["success_rate"]
        rows.append({
            "task": name, "episodes": each["episodes"], "return": each["mean_return"],
            "return_ci95": each["ci95"], "length": each["mean_length"],
            "success": None if rate is None else f"{rate:.1%}",
            "success_ci95": None if interval is None else f"{interval[0]:.1%} to {interval[1]:.1%}",
        })  # fmt: skip
    return rows


def _settings(arguments: argparse.Namespace, resolved: Resolved) -> Settings:
    from rollbus_launch.evaluation.evaluate import Settings

    config, seed = resolved.recipe.eval, arguments.seed
    if seed is not None and not 0 <= seed <= MAX_SEED:
        raise ConfigError(f"--seed {seed}: must be at least 0 and at most {MAX_SEED}")
    return Settings(
        episodes=_given(arguments.episodes, config.episodes, "--episodes"),
        num_envs=_given(arguments.num_envs, config.num_envs, "--num-envs"),
        seed=config.seed if seed is None else seed,
        mode=arguments.mode or config.mode,
        listen=config.listen,
    )


def _given(value: int | None, default: int, flag: str) -> int:
    if value is not None and value < 1:
        raise ConfigError(f"{flag} {value}: must be at least 1")
    return default if value is None else value
