"""Stage ``label``: what a value model says of each decision of a data set."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from rollbus_core import extras
from rollbus_core.config.models import option
from rollbus_core.datasets.files import read_json
from rollbus_core.datasets.labels import CARD
from rollbus_launch.label import content_of
from rollbus_launch.stages.base import DATASET, LABELS, VALUE, Artefact, Stage


class Config(Stage):
    """Settings of labels."""

    makes: ClassVar[str] = LABELS
    needs: ClassVar[tuple[str, ...]] = extras.DATASETS

    data: str = option(..., "Stage whose data set is labelled.")
    value: str = option(..., "Stage whose value model labels it.")
    permute: int = option(0, "Seed by which labels change places: a sham; 0: they stay.", ge=0)

    def inputs(self) -> dict[str, str]:
        return {self.data: DATASET, self.value: VALUE}

    def identity(self, deterministic: bool) -> dict[str, Any]:
        return {"permute": self.permute}

    def commands(self, out: Path, found: Mapping[str, Artefact], deterministic: bool) -> list[list[str]]:
        more = ["--permute", str(self.permute)] if self.permute else []
        return [
            ["label", found[self.data].folder, "--value", found[self.value].folder, "--out", str(out), *more]
        ]

    def content(self, out: Path) -> str:
        return content_of(out)

    def facts(self, out: Path) -> dict[str, Any]:
        return {"good": read_json(out / CARD)["good"]}
