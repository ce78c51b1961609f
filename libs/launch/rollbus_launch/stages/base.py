"""What a stage of a pipeline is: its inputs, the commands that make its artefact, the artefact's hash.

A stage runs commands that a person could type. Inputs are names of earlier stages. What an artefact is
called depends on what it is made from (`identity` and the contents of its inputs), its content is a hash of
what came out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

#: What stages make.
DATASET, RUN, EVALUATION, MODEL = "dataset", "run", "evaluation", "model"
LABELS, VALUE, REWARD = "labels", "value", "reward"


class Artefact(BaseModel):
    """What a finished stage has left; written beside it, last."""

    model_config = ConfigDict(frozen=True)

    stage: str
    kind: str
    makes: str
    #: Hash of what it was made from; part of the folder's name.
    key: str
    #: Hash of what came out.
    content: str
    folder: str
    #: Stage -> content of what it was made from.
    inputs: dict[str, str]
    #: Everything else that decided the result.
    identity: dict[str, Any]
    #: Further facts for people: episodes, frames, returns, ...
    facts: dict[str, Any] = {}
    commands: list[list[str]]
    wall_s: float


class Stage(BaseModel):
    """Base of the settings of one stage."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    #: What it makes.
    makes: ClassVar[str]
    #: Packages that its commands need, as imported.
    needs: ClassVar[tuple[str, ...]] = ()
    #: Whether its commands go on with what a stage that was cut has left.
    goes_on: ClassVar[bool] = False
    kind: str

    def inputs(self) -> dict[str, str]:
        """Stage -> what it must make."""
        return {}

    def identity(self, deterministic: bool) -> dict[str, Any]:
        """What decides the result, apart from the inputs: plain data. Raises `ConfigError`."""
        return self.model_dump(mode="json", exclude=set(self.inputs()))

    def commands(self, out: Path, found: Mapping[str, Artefact], deterministic: bool) -> list[list[str]]:
        """Arguments of ``rollbus`` that make ``out``, one list per command."""
        raise NotImplementedError

    def content(self, out: Path) -> str:
        """Hash of what came out. Raises `ConfigError` or `CheckpointError` if it is not whole."""
        raise NotImplementedError

    def facts(self, out: Path) -> dict[str, Any]:
        """A few figures of what came out."""
        return {}

    def show(self, out: Path) -> None:
        """Print what people want to see of it, such as a table."""
