"""Stage ``collect``: episodes of a script, chance, a function, or the policy of an earlier stage."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from rollbus_core import extras
from rollbus_core.config.models import option
from rollbus_core.datasets.reader import Dataset
from rollbus_launch.stages._recipe import resolved
from rollbus_launch.stages.base import DATASET, RUN, Artefact, Stage


class Further(BaseModel):
    """Episodes that are added to the same data set."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    policy: str = option(..., "Who acts: script, random, or module:function.")
    episodes: int = option(20, "Episodes to run.", "episodes", ge=1)
    seed: int = option(1, "Seed of the episode list.", ge=0)


class Config(Stage):
    """Settings of a collection."""

    makes: ClassVar[str] = DATASET
    needs: ClassVar[tuple[str, ...]] = extras.DATASETS

    recipe: str = option(..., "Recipe whose environment is collected from.")
    set: list[str] = option([], "Settings of the recipe that differ, key=value.")
    policy: str = option("script", "Who acts: script, random, module:function, or stage:NAME.")
    episodes: int = option(20, "Episodes to run.", "episodes", ge=1)
    seed: int = option(1, "Seed of the episode list.", ge=0)
    successful_only: bool = option(False, "Keep only episodes that succeeded.")
    mode: str = option("deterministic", "Of a policy: deterministic or stochastic.")

    then: list[Further] = option([], "What is added to the same data set: policy, episodes, seed.")

    def inputs(self) -> dict[str, str]:
        return {self.policy.removeprefix("stage:"): RUN} if self.policy.startswith("stage:") else {}

    def identity(self, deterministic: bool) -> dict[str, Any]:
        env = resolved(self.recipe, self.set).env.model_dump(mode="json")
        return self.model_dump(mode="json", exclude={"recipe", "set", "policy"}) | {
            "env": env, "policy": "stage" if self.inputs() else self.policy,
        }  # fmt: skip

    def commands(self, out: Path, found: Mapping[str, Artefact], deterministic: bool) -> list[list[str]]:
        policy = next((artefact.folder for artefact in found.values()), self.policy)
        first = self._command(out, policy, self.episodes, self.seed)
        rest = [[*self._command(out, f.policy, f.episodes, f.seed), "--append"] for f in self.then]
        return [first, *rest]

    def _command(self, out: Path, policy: str, episodes: int, seed: int) -> list[str]:
        command = [
            "collect", self.recipe, *self.set, "--out", str(out), "--policy", policy, "--episodes",
            str(episodes), "--seed", str(seed), "--mode", self.mode,
        ]  # fmt: skip
        return command + (["--successful-only"] if self.successful_only else [])

    def content(self, out: Path) -> str:
        dataset = Dataset(out)
        dataset.verify()
        return dataset.content()

    def facts(self, out: Path) -> dict[str, Any]:
        dataset = Dataset(out)
        known = [episode.success for episode in dataset.episodes()]
        rate = None if None in known else sum(map(bool, known)) / len(known)
        return {"episodes": dataset.num_episodes, "frames": dataset.num_frames, "success_rate": rate}
