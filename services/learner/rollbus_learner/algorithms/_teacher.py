"""A frozen policy out of a checkpoint, for an algorithm that learns from what it thinks."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from rollbus_core.checkpoints import CONFIG, read_manifest, resolve, spec_of
from rollbus_core.config.load import load_resolved
from rollbus_learner.checkpoint import start_from
from rollbus_wire.errors import CheckpointError, short
from rollbus_wire.spec import EnvSpec

if TYPE_CHECKING:
    from torch import Tensor

    from rollbus_learner.algorithm import Batch


def load_teacher(path: Path, spec: EnvSpec) -> nn.Module:
    """The policy of a checkpoint or of the last one of a run folder, built by the recipe kept with it.

    Raises `CheckpointError` if it observes or acts otherwise than ``spec``: with other tokens, keys,
    bounds or shapes its log-probs would be of something else.
    """
    from rollbus_policies import base

    if (path / "checkpoints").is_dir():
        path = resolve(path / "checkpoints")
    theirs = spec_of(path, read_manifest(path))
    if difference := _difference(theirs, spec):
        raise CheckpointError(
            f"algorithm.teacher {path} learned {theirs.name}, whose {difference}: teacher and student must "
            "read and write the same; give a teacher of this task"
        )
    recipe = load_resolved(path / CONFIG).recipe
    teacher = base.make(recipe.policy, spec, critic=False, frame_stack=recipe.env.frame_stack)
    start_from(teacher, path)
    return cast("nn.Module", teacher)


def _difference(theirs: EnvSpec, mine: EnvSpec) -> str:
    """The first thing that is observed or done otherwise in ``theirs``, for people; "": nothing is."""
    there, here = _fields(theirs), _fields(mine)
    for name in sorted({*there, *here}):
        if there.get(name) != here.get(name):
            one, other = (short(each[name]) if name in each else "missing" for each in (there, here))
            return f"{name} is {one}, but here it is {other}"
    return ""


def _fields(spec: EnvSpec) -> dict[str, Any]:
    """ "action.num" and the like -> its value."""
    parts = {f"observation.{key}": array for key, array in spec.observation.items()} | {"action": spec.action}
    return {f"{name}.{key}": value for name, part in parts.items() for key, value in asdict(part).items()}


def known(teacher: nn.Module, batch: Batch) -> Tensor:
    """Bool [T, N]: decisions that ``teacher`` can judge.

    A recurrent one has no state of episodes that began before the batch; it judges those that begin in it.
    """
    if getattr(teacher.spec, "state", "none") != "hub":
        return torch.ones_like(batch["valid"])
    return batch["start"].cumsum(0) > 0


def seen_by(teacher: nn.Module, batch: Batch) -> Batch:
    """``batch`` [T, N] as ``teacher`` reads it: as many observations as decisions, a state of its own."""
    length, rows = batch["valid"].shape
    seen = {n: c[:length] if n.startswith("obs/") else c for n, c in batch.items()}
    size = cast("int", getattr(teacher.spec, "state_size", 0))
    seen["state"] = torch.zeros(rows, size, device=batch["valid"].device)
    return seen
