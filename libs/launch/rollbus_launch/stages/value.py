"""Stage ``value``: the value model of a data set, which a stage ``label`` will use."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from rollbus_core import extras
from rollbus_core.config.models import option
from rollbus_launch.label import LABELLERS, content_of, settings
from rollbus_launch.stages.base import DATASET, VALUE, Artefact, Stage


class Config(Stage):
    """Settings of a value model."""

    makes: ClassVar[str] = VALUE
    needs: ClassVar[tuple[str, ...]] = extras.DATASETS

    data: str = option(..., "Stage whose data set it values.")
    by: str = option("recap", "Labeller: recap, steam, ...")
    set: list[str] = option([], "Settings of the labeller that differ, key=value.")

    def inputs(self) -> dict[str, str]:
        return {self.data: DATASET}

    def identity(self, deterministic: bool) -> dict[str, Any]:
        return {"by": self.by, "settings": settings(LABELLERS, self.by, self.set).model_dump(mode="json")}

    def commands(self, out: Path, found: Mapping[str, Artefact], deterministic: bool) -> list[list[str]]:
        return [["value", found[self.data].folder, *self.set, "--by", self.by, "--out", str(out)]]

    def content(self, out: Path) -> str:
        return content_of(out)
