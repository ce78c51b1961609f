"""Stage ``reward``: a reward model of data sets, which a stage ``rl`` is rewarded by."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from rollbus_core import extras
from rollbus_core.config.models import option
from rollbus_core.model_folders import REWARD as KIND
from rollbus_core.model_folders import read_card
from rollbus_launch.label import settings
from rollbus_launch.reward import MODELS
from rollbus_launch.stages.base import DATASET, REWARD, Artefact, Stage


class Config(Stage):
    """Settings of a reward model."""

    makes: ClassVar[str] = REWARD
    needs: ClassVar[tuple[str, ...]] = extras.DATASETS

    data: list[str] = option(..., "Stages whose data sets it learns from.", min_length=1)
    by: str = option("progress", "Kind of model: progress, success, ...")
    set: list[str] = option([], "Settings of the model that differ, key=value.")

    def inputs(self) -> dict[str, str]:
        return dict.fromkeys(self.data, DATASET)

    def identity(self, deterministic: bool) -> dict[str, Any]:
        return {"by": self.by, "settings": settings(MODELS, self.by, self.set).model_dump(mode="json")}

    def commands(self, out: Path, found: Mapping[str, Artefact], deterministic: bool) -> list[list[str]]:
        folders = [found[name].folder for name in self.data]
        return [["reward", *folders, *self.set, "--by", self.by, "--out", str(out)]]

    def content(self, out: Path) -> str:
        return str(read_card(out, KIND)["content"])

    def facts(self, out: Path) -> dict[str, Any]:
        return dict(read_card(out, KIND)["figures"])
