"""What a checkpoint of the learner holds, and how it comes back."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from rollbus_core.checkpoint_folder import CheckpointFolder
from rollbus_core.checkpoints import (
    CONFIG,
    MODEL,
    OPTIMISER,
    check_listed,
    held,
    listed,
    load_policy_tensors,
    lost_steps,
    newer,
    newest_whole,
    read_manifest,
    resolve,
)
from rollbus_core.version import Version
from rollbus_learner.algorithm import Algorithm
from rollbus_learner.optim import StepOptimiser
from rollbus_learner.tree import Tensors, flatten, storable, unflatten
from rollbus_wire.errors import CheckpointError


@dataclass
class Counters:
    """Where the run stands."""

    env_steps: int = 0
    updates: int = 0
    episodes: int = 0
    #: Stream -> `Batch.sequence` of the last applied delivery.
    applied: dict[str, int] = field(default_factory=dict)
    #: Replay: `Batch.total_steps` of it.
    table_steps: int = 0
    lineage: int = 0

    @property
    def version(self) -> Version:
        """The version that the weights are."""
        return Version(self.lineage, self.updates)


@dataclass
class Training:
    """Everything that changes while training."""

    algorithm: Algorithm
    optimisers: Mapping[str, StepOptimiser]
    counters: Counters = field(default_factory=Counters)

    def saved_tensors(self) -> Tensors:
        """All tensors of the saved roles, "<role>.<name>"."""
        return {
            f"{name}.{key}": tensor
            for name, role in self.algorithm.roles().items() if role.saved
            for key, tensor in role.module.state_dict().items()
        }  # fmt: skip


def _save_tensors(tensors: Tensors, path: Path, metadata: dict[str, str] | None = None) -> None:
    """Write ``tensors``. Raises `OSError`, of which safetensors tells in a text."""
    try:
        save_file(storable(tensors), path, metadata)
    except SafetensorError as error:
        found = re.search(r"\(os error (\d+)\)", str(error))
        if found is None:
            raise
        raise OSError(int(found[1]), os.strerror(int(found[1])), str(path)) from None


class Checkpoints:
    """Saves and restores a `Training` in ``folder``; ``config`` is copied along if it exists."""

    def __init__(self, folder: Path, keep: int, config: Path | None = None) -> None:
        self.files, self._config = CheckpointFolder(folder, keep), config
        #: Damaged checkpoints that `resume` passed over, and the steps that only they hold.
        self.passed_over: list[Path] = []
        self.lost_steps = 0
        self.files.check()
        self.files.sweep()

    @property
    def folder(self) -> Path:
        return self.files.folder

    def save(
        self, training: Training, protected: Iterable[Path] = (),
        more: Mapping[str, Callable[[Path], None]] | None = None,
    ) -> Path:  # fmt: skip
        """Write one checkpoint, point ``last`` at it, remove what need not stay.

        ``more``: further files, each of which writes itself to the path it gets.
        """
        counters = training.counters
        model = training.saved_tensors()
        published = _published(training, model)
        state: Tensors = {}
        index = flatten(
            {
                "optimisers": {name: opt.state() for name, opt in training.optimisers.items()},
                "algorithm": training.algorithm.state(),
                "rng": {"torch": torch.get_rng_state()},
            },
            state,
        )
        files: dict[str, Callable[[Path], None]] = {
            MODEL: lambda path: _save_tensors(model, path),
            OPTIMISER: lambda path: _save_tensors(state, path, {"index": json.dumps(index)}),
        }
        files |= dict(more or {})
        if self._config is not None and self._config.exists():
            config = self._config
            files[CONFIG] = lambda path: _copy(config, path)
        manifest = {
            **asdict(counters),
            "version": list(counters.version),
            "spec": training.algorithm.spec.to_data(),
            "published": published,
        }
        path = self.files.write(manifest, files)
        self.files.prune(protected)
        return path

    def resume(self, mode: str, training: Training, log: Any) -> Path | None:
        """Restore ``training`` from the newest checkpoint that is whole, if ``mode`` wants it; its folder."""
        if problem := self.files.forget_damaged_best():
            log.warning("best checkpoint forgotten", problem=problem)
        exists = bool(listed(self.folder))
        if mode == "must" and not exists:
            raise CheckpointError(
                f"run.resume is must, but {self.folder} has no checkpoint; "
                "give the folder of a run that has one"
            )
        if not exists or mode == "never":
            return None
        path, problems = newest_whole(self.folder)
        self.passed_over, self.lost_steps = newer(path), lost_steps(path)
        for problem in problems:
            log.warning("checkpoint passed over", problem=problem, lost_steps=self.lost_steps)
        self.load(path.name, training)
        counters = training.counters
        log.info("resumed", env_steps=counters.env_steps, updates=counters.updates)
        return path

    def load(self, which: str, training: Training) -> dict[str, Any]:
        """Restore ``training`` in place from "last", "best" or a name; returns the manifest.

        Nothing is changed if the checkpoint is damaged or does not fit (`CheckpointError`).
        """
        path = resolve(self.folder, which)
        with held(path):
            manifest = read_manifest(path)
            check_listed(path, manifest, MODEL, OPTIMISER)
            if lacking := [name for name in asdict(training.counters) if name not in manifest]:
                raise CheckpointError(f"{path} does not say {', '.join(lacking)}; use another checkpoint")
            try:
                model = load_file(path / MODEL)
                with safe_open(path / OPTIMISER, "pt") as file:
                    index = json.loads(file.metadata()["index"])
                    tensors = {name: file.get_tensor(name) for name in file.keys()}
            except (SafetensorError, OSError, KeyError, ValueError) as error:
                raise CheckpointError(f"{path} is not readable: {error}; use another checkpoint") from None
        _refuse_misfit(path, model, training.saved_tensors())
        state = unflatten(index, tensors)
        if set(state["optimisers"]) != set(training.optimisers):
            raise CheckpointError(
                f"{path} has optimisers {sorted(state['optimisers'])}, the recipe's algorithm has "
                f"{sorted(training.optimisers)}; continue with the recipe of that run"
            )
        _restore(training, model, state)
        counters = training.counters
        for name in asdict(counters):
            setattr(counters, name, manifest[name])
        return manifest


def _copy(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)


def _published(training: Training, model: Tensors) -> dict[str, str]:
    """Name for actors -> name in ``model``, to which what is nowhere else is added."""
    roles = {name: role.module for name, role in training.algorithm.roles().items()}
    places = {(t.data_ptr(), tuple(t.shape), t.dtype): name for name, t in model.items() if t.numel()}
    published = {}
    for name, tensor in training.algorithm.publish(roles).items():
        key = (tensor.data_ptr(), tuple(tensor.shape), tensor.dtype)
        found = places.get(key)
        if found is None:
            found = f"published.{name}"
            model[found] = tensor
        published[name] = found
    return published


def _refuse_misfit(path: Path, model: Tensors, wanted: Tensors) -> None:
    have = {name for name in model if not name.startswith("published.")}
    problems = [f"{name} is missing" for name in sorted(set(wanted) - have)]
    problems += [f"{name} is not in the recipe's networks" for name in sorted(have - set(wanted))]
    problems += [
        f"{name} is {list(model[name].shape)}, the recipe's is {list(wanted[name].shape)}"
        for name in sorted(have & set(wanted)) if model[name].shape != wanted[name].shape
    ]  # fmt: skip
    if problems:
        more = f" and {len(problems) - 8} more" if len(problems) > 8 else ""
        raise CheckpointError(
            f"{path} does not fit: {'; '.join(problems[:8])}{more}. Continue with the recipe of that run, or "
            "train in another run folder"
        )


def _restore(training: Training, model: Tensors, state: dict[str, Any]) -> None:
    for name, role in training.algorithm.roles().items():
        if role.saved:
            prefix = f"{name}."
            own = {k.removeprefix(prefix): v for k, v in model.items() if k.startswith(prefix)}
            role.module.load_state_dict(own)
    for name, optimiser in training.optimisers.items():
        optimiser.load_state(state["optimisers"][name])
    training.algorithm.load_state(state["algorithm"])
    torch.set_rng_state(state["rng"]["torch"])


#: Parts of a policy that another run need not have: a value function, what chooses the initial noise or
#: changes what was decided.
OWN_START = ("critic.", "steer.", "refine.")


def start_from(policy: nn.Module, path: Path) -> None:
    """Give ``policy`` the weights of another run: a checkpoint, or the last one of a run folder.

    What actors were given there must fit; `OWN_START` may be missing and keeps its own start.
    Raises `CheckpointError`.
    """
    if (path / "checkpoints").is_dir():
        path = resolve(path / "checkpoints")
    tensors, _ = load_policy_tensors(path)
    have = policy.state_dict()
    wanted = {name for name in have if not name.startswith(OWN_START)}
    unfit = sorted(
        name
        for name in wanted | set(tensors)
        if (
            tuple(have[name].shape) != tensors[name].shape
            if name in have and name in tensors
            else not name.startswith(OWN_START)
        )
    )
    if unfit:
        raise CheckpointError(
            f"run.start_from {path} is of another policy: {', '.join(unfit[:5])} differ in name or shape; "
            "use the policy section of that run"
        )
    fitting = {name: torch.from_numpy(tensors[name].copy()) for name in tensors if name in have}
    policy.load_state_dict({**have, **fitting})
