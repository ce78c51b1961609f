"""Stage ``export``: the policy of an earlier stage as files that need no Rollbus."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from rollbus_core import extras
from rollbus_core.config.models import option
from rollbus_core.datasets.files import digest_of
from rollbus_launch.export import FILES, read_card
from rollbus_launch.stages.base import MODEL, RUN, Artefact, Stage


class Config(Stage):
    """Settings of an export."""

    makes: ClassVar[str] = MODEL
    needs: ClassVar[tuple[str, ...]] = extras.EXPORT

    run: str = option(..., "Stage whose last checkpoint is exported.")

    def inputs(self) -> dict[str, str]:
        return {self.run: RUN}

    def identity(self, deterministic: bool) -> dict[str, Any]:
        return self.model_dump(mode="json")

    def commands(self, out: Path, found: Mapping[str, Artefact], deterministic: bool) -> list[list[str]]:
        return [["export", found[self.run].folder, "--checkpoint", "last", "--out", str(out)]]

    def content(self, out: Path) -> str:
        digests = [f"{name} {digest_of(out / name)}" for name in FILES]
        return hashlib.sha256("\n".join(digests).encode()).hexdigest()

    def facts(self, out: Path) -> dict[str, Any]:
        card = read_card(out)
        return {"onnx_difference": card["onnx_difference"], "inputs": sorted(card["inputs"])}
