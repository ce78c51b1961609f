"""What `rollbus train` says and refuses when it goes on from a checkpoint."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from rollbus_core.checkpoints import (
    CONFIG,
    check_kinds,
    listed,
    lost_steps,
    newest_whole,
    read_manifest,
)
from rollbus_core.config.load import Resolved, load_resolved
from rollbus_core.feed import TRAINING_TABLE
from rollbus_core.paths import RunPaths
from rollbus_launch.changes import ARRANGEMENT, changes
from rollbus_wire.errors import CheckpointError, ConfigError

#: Sections that say how a run is run, not what is learned.
_HOW = frozenset({"run", "actor", "deploy", "broker", "checkpoint", "eval", "stop_when"})
#: Keys of ``run`` that are part of what is learned.
_LEARNED = frozenset({"run.seed", "run.total_steps", "run.total_updates"})


def check_start(resolved: Resolved) -> None:
    """Raise `ConfigError` if `run.start_from` is not there, or is no start for this algorithm."""
    path = Path(resolved.recipe.run.start_from)
    if not resolved.recipe.run.start_from:
        return
    if not path.is_dir():
        raise ConfigError(f"run.start_from {path} is not there; set it to a run folder or checkpoint")
    if not (saved := path / CONFIG).exists():
        return
    reason = resolved.recipe.algorithm.unfit_start(load_resolved(saved).recipe.algorithm)
    if reason:
        raise ConfigError(f"run.start_from {path} {reason}")


@dataclass(frozen=True)
class Start:
    """What a run goes on from; nothing if it begins anew."""

    env_steps: int = 0
    updates: int = 0
    #: Lines for people.
    notes: list[str] = field(default_factory=list)


def before(resolved: Resolved, paths: RunPaths) -> Start:
    """What the run goes on from.

    Raises `ConfigError` if the checkpoint is of another task, policy or algorithm, or if something in the run
    folder is not of its kind.
    """
    last = paths.checkpoints / "last"
    if resolved.recipe.run.resume == "never":
        return Start()
    paths.check()
    if not os.path.lexists(last):
        if resolved.recipe.run.resume == "must":
            raise ConfigError(
                f"run.resume is must, but {paths.root} holds no checkpoint to go on from; give the --run-dir "
                "of a run that has one, or set run.resume=auto"
            )
        return Start(notes=_without_checkpoint(paths))
    if not last.exists() and not listed(paths.checkpoints):
        raise ConfigError(
            f"{last} says {os.readlink(last)}, which is gone, and there is no other checkpoint; put it back, "
            "use another --run-dir, or begin anew with run.resume=never"
        )
    try:
        checkpoint, problems = newest_whole(paths.checkpoints)
    except CheckpointError:
        return Start()  # the learner says what is wrong with each
    saved = checkpoint / CONFIG
    found = changes(load_resolved(saved).recipe, resolved.recipe) if saved.exists() else ()
    changed = [change for change in found if _is_told(change.key)]
    for change in changed:
        if change.is_identity:
            raise ConfigError(
                f"{change.key} is {change.new!r}, but the checkpoint to go on from has {change.old!r} "
                f"({checkpoint}); use another --run-dir, or run.resume=never"
            )
    lines = [f"passed over: {problem}" for problem in problems]
    if lost := _lost(resolved, checkpoint):
        lines.append(lost)
    lines.append(f"goes on from checkpoint {checkpoint.name} (run.resume=never begins anew)")
    run, there = resolved.recipe.run, read_manifest(checkpoint, verify=False)
    if there["env_steps"] >= run.total_steps:
        steps = f"{there['env_steps']:,} of run.total_steps {run.total_steps:,} steps"
        lines.append(f"it is at its end already, at {steps}: nothing is trained")
    told = [f"{key} {new!r} (was {old!r})" for key, old, new in changed]
    lines += [f"with other settings: {', '.join(told)}"] if told else []
    return Start(there["env_steps"], there.get("updates", 0), lines)


def _without_checkpoint(paths: RunPaths) -> list[str]:
    """A line on an earlier start that has left records and no checkpoint."""
    if not (paths.metrics.exists() and paths.metrics.stat().st_size):
        return []
    return [
        f"begins at 0: {paths.checkpoints} holds no checkpoint of the earlier start that "
        f"{paths.metrics.name} tells of (run.resume=never puts what is here aside)"
    ]


def _lost(resolved: Resolved, checkpoint: Path) -> str:
    """A line on the data that only damaged checkpoints, newer than ``checkpoint``, had learned from."""
    feed, steps = resolved.feeds.get(TRAINING_TABLE), lost_steps(checkpoint)
    if feed is None or feed.table.sampler != "queue" or resolved.recipe.run.deterministic or not steps:
        return ""
    return (
        f"{steps:,} steps that only a damaged checkpoint had learned from cannot be had again "
        "(damaged_checkpoint in rollbus audit); others are collected in their place"
    )


def set_aside(paths: RunPaths) -> str:
    """Make room for a run that begins anew: what is in its folder becomes a run folder inside it.

    A line for people; empty if nothing was there.
    """
    if not paths.config.exists():
        return ""
    number = 1
    while (target := paths.root / f"earlier-{number}").exists():
        number += 1
    target.mkdir(0o700)
    for path in paths.contents:
        if path.exists():
            path.rename(target / path.name)
    return f"begins anew (run.resume=never); the run that was here is in {target}"


def _is_told(key: str) -> bool:
    """Whether ``key`` says what is learned, not how a run is run."""
    section, _, name = key.partition(".")
    if section in _HOW:
        return key in _LEARNED
    return not (section == "env" and name in ARRANGEMENT)


def settings_of(checkpoint: Path, paths: RunPaths) -> Path:
    """The configuration that ``checkpoint`` was made with; that of the run, where it holds none."""
    check_kinds(checkpoint)
    own = checkpoint / CONFIG
    return own if own.exists() else paths.config
