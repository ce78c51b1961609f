"""What `rollbus train` says and refuses when it goes on from a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollbus_core.checkpoints import CONFIG, check_kinds, listed, newest_whole, read_manifest
from rollbus_core.config.load import Resolved, load_resolved
from rollbus_core.config.models import EnvConfig
from rollbus_core.paths import RunPaths
from rollbus_wire.errors import CheckpointError, ConfigError

#: Sections that say how a run is run, not what is learned.
_HOW = frozenset({"run", "actor", "deploy", "broker", "checkpoint", "eval", "stop_when"})
#: Keys of ``env`` that all environments have and that are no part of the task.
_ARRANGEMENT = frozenset(EnvConfig.model_fields) - {
    "name", "frame_stack", "action_repeat", "time_limit", "options",
}  # fmt: skip


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
        return Start()
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
    changes = list(_changes(load_resolved(saved).recipe, resolved.recipe)) if saved.exists() else []
    for key, old, new in changes:
        if _is_identity(key):
            raise ConfigError(
                f"{key} is {new!r}, but the checkpoint to go on from has {old!r} ({checkpoint}); use another "
                "--run-dir, or run.resume=never"
            )
    lines = [f"passed over: {problem}" for problem in problems]
    run, there = resolved.recipe.run, read_manifest(checkpoint, verify=False)
    if there["env_steps"] >= run.total_steps:
        steps = f"{there['env_steps']:,} of run.total_steps {run.total_steps:,} steps"
        lines.append(f"it is at its end already, at {steps}: nothing is trained")
    lines.append(f"goes on from checkpoint {checkpoint.name} (run.resume=never begins anew)")
    told = [f"{key} {new!r} (was {old!r})" for key, old, new in changes]
    lines += [f"with other settings: {', '.join(told)}"] if told else []
    return Start(there["env_steps"], there.get("updates", 0), lines)


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


def _changes(old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    """(key, old value, new value) of what differs in the sections that say what is learned."""
    for key in ("seed", "total_steps", "total_updates"):
        values = getattr(old.run, key), getattr(new.run, key)
        if values[0] != values[1]:
            yield f"run.{key}", *values
    for section in type(new).model_fields:
        before, after = getattr(old, section), getattr(new, section)
        if section in _HOW or before == after:
            continue
        for key in sorted(set(dict(before)) | set(dict(after))):
            values = getattr(before, key, None), getattr(after, key, None)
            if values[0] != values[1] and not (section == "env" and key in _ARRANGEMENT):
                yield f"{section}.{key}", *values


def _is_identity(key: str) -> bool:
    """Whether a run with another value of ``key`` is another run: its task, its policy, its algorithm."""
    section, _, name = key.partition(".")
    return section in ("env", "policy") and name not in ("time_limit", "options") or key == "algorithm.name"


def settings_of(checkpoint: Path, paths: RunPaths) -> Path:
    """The configuration that ``checkpoint`` was made with; that of the run, where it holds none."""
    check_kinds(checkpoint)
    own = checkpoint / CONFIG
    return own if own.exists() else paths.config
