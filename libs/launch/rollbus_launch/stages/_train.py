"""What stages have in common that train a recipe."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from rollbus_core.checkpoints import MODEL, read_manifest, resolve
from rollbus_core.config.models import option
from rollbus_core.paths import RunPaths
from rollbus_launch.stages._recipe import (
    data_overrides,
    deterministic_overrides,
    resolved,
    reward_overrides,
)
from rollbus_launch.stages.base import DATASET, LABELS, REWARD, RUN, Artefact, Stage
from rollbus_wire.errors import ConfigError

#: Ways in which a run ends that is not over.
CUT_SHORT = ("interrupt", "rollbus stop")


class TrainStage(Stage):
    """A run of ``recipe``; its last checkpoint counts."""

    makes: ClassVar[str] = RUN
    goes_on: ClassVar[bool] = True

    recipe: str = option(..., "Recipe to train.")
    set: list[str] = option([], "Settings of the recipe that differ, key=value.")
    data: list[str] = option([], "Stages whose data sets it learns from; empty: those of the recipe.")
    labels: str = option("", "Stage that labelled them; empty: none.")
    start_from: str = option("", "Stage whose policy it begins with; empty: that of the recipe.")
    rewards: dict[str, float] = option(
        {}, "Stages whose reward models reward it, each with its weight; empty: the rewards of the recipe."
    )

    def inputs(self) -> dict[str, str]:
        labels = {self.labels: LABELS} if self.labels else {}
        start = {self.start_from: RUN} if self.start_from else {}
        return dict.fromkeys(self.data, DATASET) | labels | start | dict.fromkeys(self.rewards, REWARD)

    def _overrides(self, folders: Mapping[str, str], deterministic: bool) -> list[str]:
        """The recipe's settings with ``folders`` (stage -> folder) where they belong."""
        labels = folders[self.labels] if self.labels else ""
        given = [*self.set, *data_overrides({name: folders[name] for name in self.data}, labels)]
        given += reward_overrides(folders, self.rewards)
        if self.start_from:
            given.append(f"run.start_from={folders[self.start_from]}")
        return given + (deterministic_overrides(self.recipe, given) if deterministic else [])

    def identity(self, deterministic: bool) -> dict[str, Any]:
        names = {name: f"<{name}>" for name in self.inputs()}
        recipe = resolved(self.recipe, self._overrides(names, deterministic))
        return {"recipe": recipe.model_dump(mode="json")}

    def commands(self, out: Path, found: Mapping[str, Artefact], deterministic: bool) -> list[list[str]]:
        folders = {name: artefact.folder for name, artefact in found.items()}
        return [["train", self.recipe, *self._overrides(folders, deterministic), "--run-dir", str(out)]]

    def content(self, out: Path) -> str:
        stopped_by = _summary(out).get("stopped_by", "nothing: it did not end")
        if stopped_by in CUT_SHORT:
            raise ConfigError(f"{out} was ended by {stopped_by!r}; run the pipeline again to go on with it")
        return str(read_manifest(resolve(RunPaths(out).checkpoints, "last"))["files"][MODEL])

    def facts(self, out: Path) -> dict[str, Any]:
        wanted = ("updates", "env_steps", "mean_return", "stopped_by")
        return {key: value for key, value in _summary(out).items() if key in wanted}


def _summary(out: Path) -> dict[str, Any]:
    paths = RunPaths(out)
    paths.check()
    if not paths.summary.exists():
        raise ConfigError(f"{out} has no {paths.summary.name}: training did not end")
    data: dict[str, Any] = json.loads(paths.summary.read_text())
    return data
