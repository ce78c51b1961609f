"""``rollbus train RECIPE``: train, evaluate, and say where everything is."""

from __future__ import annotations

import argparse
import signal
import time
from pathlib import Path
from typing import Any

from rollbus_core.config.load import Resolved, load, load_resolved
from rollbus_core.cores import num_cores
from rollbus_core.paths import RunPaths, remove_dead
from rollbus_launch import auto_layout, environments
from rollbus_launch.compare import compare_rows
from rollbus_launch.progress import Display
from rollbus_launch.records import draw_curve, write_summary
from rollbus_launch.session import Session, newest_checkpoint
from rollbus_launch.tables import add_json_flag, show
from rollbus_wire.errors import ConfigError


def add_parser(subparsers: Any) -> None:
    """rollbus train RECIPE [key=value ...] [--run-dir DIR] [--seeds 1,2,3]"""
    parser = subparsers.add_parser("train", help="train a recipe", description=__doc__)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="run.seed=3 env.num_envs=8 ...")
    parser.add_argument("--run-dir", type=Path, help="default: runs/NAME")
    parser.add_argument("--seeds", help="several seeds one after the other: 1,2,3")
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Train once, or once per seed."""
    if not arguments.seeds:
        summary, paths = train(arguments.recipe, arguments.overrides, arguments.run_dir)
        if arguments.json:
            show([summary | {"run_dir": str(paths.root)}], as_json=True)
        return 130 if summary["stopped_by"] == "interrupt" else 0
    seeds = _seeds(arguments.seeds)
    root = arguments.run_dir or Path("runs") / f"{arguments.recipe.stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    all_paths = []
    for seed in seeds:
        overrides = [*arguments.overrides, f"run.seed={seed}"]
        summary, paths = train(arguments.recipe, overrides, root / f"seed-{seed}")
        all_paths.append(paths)
        if summary["stopped_by"] == "interrupt":
            return 130
    show(compare_rows(all_paths), as_json=arguments.json, title="seeds")
    return 0


def train(recipe: Path, overrides: list[str], run_dir: Path | None) -> tuple[dict[str, Any], RunPaths]:
    """One run; its summary and its paths."""
    started = time.monotonic()
    resolved = load(recipe, overrides)
    choice = auto_layout.choose(resolved, num_cores())
    chosen = load(recipe, [*overrides, *choice.overrides]) if choice.overrides else resolved
    name = resolved.recipe.run.name or f"{recipe.stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    paths = RunPaths(run_dir or Path("runs") / name)
    _refuse_another_policy(resolved, paths)
    remove_dead()
    if (paths.runtime / "alive").exists():
        raise ConfigError(f"a run is active in {paths.root}; stop it (rollbus stop) or use another --run-dir")
    check_data(chosen)
    paths.create()
    try:
        session = _run_session(chosen, paths, recipe.stem, choice.reason)
        auto_layout.remember(resolved, session.costs)
    finally:
        remove_dead()
    summary = write_summary(
        paths,
        wall_s=time.monotonic() - started,
        stopped_by=session.stopped_by,
        run=resolved.recipe.run,
    )
    _say_where(paths, summary)
    return summary, paths


def _refuse_another_policy(resolved: Resolved, paths: RunPaths) -> None:
    """What a run would go on from must have been made by the same policy."""
    saved = paths.checkpoints / "last" / "config.yaml"
    if resolved.recipe.run.resume == "never" or not saved.exists():
        return
    before = load_resolved(saved).recipe
    for section in ("policy", "algorithm"):
        old, new = getattr(before, section), getattr(resolved.recipe, section)
        names = {"name"} if section == "algorithm" else set(dict(old)) | set(dict(new))
        for key in sorted(names):
            if getattr(old, key, None) != getattr(new, key, None):
                raise ConfigError(
                    f"{section}.{key} is {getattr(new, key, None)!r}, but the checkpoint to go on from has "
                    f"{getattr(old, key, None)!r} ({paths.root}); use another --run-dir, or run.resume=never"
                )


def _run_session(resolved: Any, paths: RunPaths, title: str, reason: str) -> Session:
    paths.require_shared_memory(2 * resolved.recipe.broker.slab_bytes)
    with paths.alive():
        paths.config.write_text(resolved.to_yaml())
        _point_latest(paths)
        run, title = resolved.recipe.run, f"{title} -> {paths.root}"
        goal = (run.total_steps, "steps") if resolved.online else (run.total_updates, "updates")
        with Display(title, *goal) as display:
            for feed in resolved.feeds.values():
                if feed.summary:
                    display.note(feed.summary)
            if reason:
                display.note(reason)
            last = paths.checkpoints / "last"
            if last.exists() and resolved.recipe.run.resume != "never":
                display.note(f"goes on from checkpoint {last.resolve().name} (run.resume=never begins anew)")
            session = Session(resolved, paths, display)
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, session.request_stop)
            session.run()
    return session


def check_data(resolved: Any) -> None:
    """Data sets are there and are what the algorithm can use, before a process starts."""
    if resolved.recipe.data.sources:
        from rollbus_core.datasets.parts import parts

        found = parts(resolved.recipe.data, resolved.feeds)
        if not resolved.online:
            spec = environments.offline_spec(resolved.recipe)
            for part in sum(found.values(), []):
                part.fitted(spec)


def _seeds(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--seeds {text!r}: give integers with commas, such as 1,2,3") from None


def _point_latest(paths: RunPaths) -> None:
    latest = Path("runs/latest")
    latest.parent.mkdir(exist_ok=True)
    if latest.is_symlink() or not latest.exists():
        latest.unlink(missing_ok=True)
        latest.symlink_to(paths.root)


def _say_where(paths: RunPaths, summary: dict[str, Any]) -> None:
    checkpoint = newest_checkpoint(paths)
    drawn = draw_curve([paths], paths.curve)
    lines = {
        "checkpoint": checkpoint if checkpoint.exists() else "- (none was saved)",
        "curve": paths.curve if drawn else "- (no episode has ended, or rollbus[records] is not installed)",
        "dashboard": f"tensorboard --logdir {paths.tensorboard}",
        "summary": paths.summary,
    }
    steps = summary.get("env_steps", 0)
    done = f"{steps:,} steps" if steps else f"{summary.get('updates', 0):,} updates"
    speed = f", {summary.get('env_steps_per_s') or 0:,.0f} steps/s while training" if steps else ""
    print(f"{done} in {summary['wall_s']:.1f} s{speed}, ended by {summary['stopped_by']}")
    for label, value in lines.items():
        print(f"{label:>11}: {value}")
