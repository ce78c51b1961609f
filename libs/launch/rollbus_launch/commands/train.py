"""``rollbus train RECIPE``: train, evaluate, and say where everything is."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from rollbus_core import model_folders
from rollbus_core.checkpoints import write_atomic
from rollbus_core.config.load import load
from rollbus_core.cores import num_cores
from rollbus_core.lines import is_no_room
from rollbus_core.paths import RunPaths, remove_dead
from rollbus_launch import environments, resuming, room
from rollbus_launch.compare import compare_rows
from rollbus_launch.control import LATEST, named
from rollbus_launch.planning import auto_layout
from rollbus_launch.progress import Display
from rollbus_launch.records import draw_curve, why_no_curve, write_summary
from rollbus_launch.session import Session, layout, newest_checkpoint
from rollbus_launch.tables import add_json_flag, show
from rollbus_wire import lookup
from rollbus_wire.errors import ConfigError


def add_parser(subparsers: Any) -> None:
    """rollbus train RECIPE [key=value ...] [--run-dir DIR] [--seeds 1,2,3]"""
    parser = subparsers.add_parser("train", help="train a recipe", description=__doc__)
    parser.add_argument("recipe", type=Path, help="a file such as recipes/cartpole_ppo.yaml")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="run.seed=3 env.num_envs=8 ...")
    parser.add_argument("--run-dir", type=Path, help="default: runs/NAME-DATE; one with a run goes on")
    parser.add_argument("--seeds", help="several seeds one after the other: 1,2,3")
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Train once, or once per seed."""
    told = sys.stderr if arguments.json else sys.stdout
    if not arguments.seeds:
        summary, paths = train(arguments.recipe, arguments.overrides, arguments.run_dir, told=told)
        if arguments.json:
            show([summary | {"run_dir": str(paths.root)}], as_json=True)
        return 130 if summary["stopped_by"] == "interrupt" else 0
    seeds = _seeds(arguments.seeds)
    root = arguments.run_dir or Path("runs") / f"{arguments.recipe.stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    all_paths = []
    for seed in seeds:
        overrides = [*arguments.overrides, f"run.seed={seed}"]
        summary, paths = train(arguments.recipe, overrides, root / f"seed-{seed}", told=told)
        all_paths.append(paths)
        if summary["stopped_by"] == "interrupt":
            return 130
    show(compare_rows(all_paths), as_json=arguments.json, title="seeds")
    return 0


def train(
    recipe: Path, overrides: list[str], run_dir: Path | None, *, told: TextIO = sys.stdout
) -> tuple[dict[str, Any], RunPaths]:
    """One run; its summary and its paths. Where everything is goes to ``told``."""
    started = time.monotonic()
    resolved = load(recipe, overrides)
    choice = auto_layout.choose(resolved, num_cores())
    chosen = load(recipe, [*overrides, *choice.overrides]) if choice.overrides else resolved
    name = resolved.recipe.run.name or f"{recipe.stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    paths = RunPaths(run_dir or Path("runs") / name)
    resuming.check_start(resolved)
    start = resuming.before(resolved, paths)
    remove_dead()
    if paths.held():
        who = f": {named(pids)}" if (pids := paths.claimants()) else ""
        raise ConfigError(
            f"a run is active in {paths.root}{who}; stop it (rollbus stop) or use another --run-dir"
        )
    notes = [*start.notes, *check_data(chosen)]
    room.check_run(chosen.recipe, layout(chosen.recipe))
    with _room_for(paths):
        if resolved.recipe.run.resume == "never":
            notes.append(resuming.set_aside(paths))
        paths.create()
        try:
            session = _run_session(chosen, paths, recipe.stem, [choice.reason, *notes])
            auto_layout.remember(resolved, session.costs.reports)
        finally:
            remove_dead()
        summary = write_summary(
            paths,
            wall_s=time.monotonic() - started,
            stopped_by=session.stopped_by,
            run=resolved.recipe.run,
        )
        _say_where(paths, summary, start, told)
    return summary, paths


@contextlib.contextmanager
def _room_for(paths: RunPaths) -> Iterator[None]:
    """Say which disk is full."""
    try:
        yield
    except OSError as error:
        if not is_no_room(error):
            raise
        where = error.filename or paths.root
        raise ConfigError(
            f"the disk of {where} is full; free some room; the same command goes on from the last checkpoint"
        ) from None


def _run_session(resolved: Any, paths: RunPaths, title: str, notes: list[str]) -> Session:
    paths.require_shared_memory(2 * resolved.recipe.broker.slab_bytes)
    with paths.alive():
        write_atomic(paths.config, resolved.to_yaml().encode())
        unlinked = _point_latest(paths)
        run, title = resolved.recipe.run, f"{title} -> {paths.root}"
        goal = (run.total_steps, "steps") if resolved.online else (run.total_updates, "updates")
        with Display(title, *goal) as display:
            for feed in resolved.feeds.values():
                if feed.summary:
                    display.note(feed.summary)
            for note in filter(None, [*notes, unlinked, *_awaited(resolved.recipe)]):
                display.note(note)
            session = Session(resolved, paths, display)
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, session.request_stop)
            session.run()
    return session


def _awaited(recipe: Any) -> list[str]:
    """Where environments must dial in before anything happens."""
    if recipe.env.placement != "dial_in":
        return []
    places = {"training": (recipe.env.listen, recipe.env.num_envs)}
    if recipe.eval.every_steps or recipe.eval.every_updates:
        places["evaluation"] = (recipe.eval.listen, recipe.eval.num_envs)
    return [
        f"{what} waits for {rows} rows of environments that dial in at {listen or 'its ipc:// address'} "
        "(run_env, docs/environments.md)"
        for what, (listen, rows) in places.items()
    ]


def check_data(resolved: Any) -> list[str]:
    """Data sets and rewards are there and fit, before a process starts; lines on what may surprise."""
    for reward in resolved.recipe.learner.rewards:
        if reward.kind == "model":
            model_folders.read_card(Path(reward.source), model_folders.REWARD)
        elif reward.kind == "function":
            lookup.function(reward.source, "learner.rewards")
    if not resolved.recipe.data.sources:
        return []
    from rollbus_core.datasets.parts import parts

    found, notes = parts(resolved.recipe.data, resolved.feeds), []
    if not resolved.online:
        spec = environments.offline_spec(resolved.recipe)
        for part in sum(found.values(), []):
            part.fitted(spec)
            recorded = part.dataset.spec
            if recorded is not None and recorded.name != spec.name:
                notes.append(
                    f"{part.source.path} was recorded in {recorded.name}, this run is of {spec.name}"
                )
    return list(dict.fromkeys(notes))


def _seeds(text: str) -> list[int]:
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--seeds {text!r}: give integers with commas, such as 1,2,3") from None
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"--seeds {text!r}: a seed is given twice, and would be the same run again")
    return seeds


def _point_latest(paths: RunPaths) -> str:
    """Have runs/latest name this run, for commands that are given none; a line on it where that fails."""
    try:
        LATEST.parent.mkdir(exist_ok=True)
        if LATEST.is_symlink() or not LATEST.exists():
            LATEST.unlink(missing_ok=True)
            LATEST.symlink_to(paths.root)
    except OSError as error:
        return f"{LATEST.absolute()} cannot be made ({error.strerror}): name the run folder to other commands"
    return ""


def _of_them(num: int, before: int, unit: str) -> str:
    return f"{num:,} {unit}" + (f", {num - before:,} of them" if before else "")


def _say_where(paths: RunPaths, summary: dict[str, Any], start: resuming.Start, told: TextIO) -> None:
    checkpoint = newest_checkpoint(paths)
    drawn = draw_curve([paths], paths.curve)
    lines = {
        "checkpoint": checkpoint if checkpoint.exists() else "- (none was saved)",
        "curve": paths.curve if drawn else f"- ({why_no_curve()})",
        "dashboard": f"tensorboard --logdir {paths.tensorboard}" if paths.tensorboard.exists() else "-",
        "summary": paths.summary,
    }
    steps = summary.get("env_steps", 0)
    if steps:
        done = _of_them(steps, start.env_steps, "steps")
    else:
        done = _of_them(summary["updates"], start.updates, "updates")
    speed = f", {summary.get('env_steps_per_s') or 0:,.0f} steps/s while training" if steps else ""
    print(f"{done} in {summary['wall_s']:.1f} s{speed}, ended by {summary['stopped_by']}", file=told)
    for label, value in lines.items():
        print(f"{label:>11}: {value}", file=told)
