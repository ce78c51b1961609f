"""Stage ``eval``: the same episodes for several policies; with two of them, what the second adds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from rollbus_core.config.models import option
from rollbus_launch.evaluation.intervals import paired_gain, wilson
from rollbus_launch.stages.base import EVALUATION, RUN, Artefact, Stage
from rollbus_launch.tables import show

#: Of an evaluation, what does not depend on where and when it was done.
RESULT = ("mode", "seed", "mean_return", "ci95", "success_rate", "episodes")


class Config(Stage):
    """Settings of an evaluation."""

    makes: ClassVar[str] = EVALUATION

    runs: list[str] = option(..., "Stages whose last checkpoints are evaluated.", min_length=1)
    episodes: int = option(100, "Episodes of each.", "episodes", ge=1)
    seed: int = option(1, "Seed of the episode list.", ge=0)
    mode: str = option("deterministic", "deterministic or stochastic.")

    def inputs(self) -> dict[str, str]:
        return dict.fromkeys(self.runs, RUN)

    def identity(self, deterministic: bool) -> dict[str, Any]:
        return self.model_dump(mode="json")

    def commands(self, out: Path, found: Mapping[str, Artefact], deterministic: bool) -> list[list[str]]:
        return [
            ["eval", found[name].folder, "--checkpoint", "last", "--episodes", str(self.episodes), "--seed",
             str(self.seed), "--mode", self.mode, "--out", str(out / f"{name}.json")]
            for name in self.runs
        ]  # fmt: skip

    def content(self, out: Path) -> str:
        results = {name: {key: found[key] for key in RESULT} for name, found in self._read(out).items()}
        return hashlib.sha256(json.dumps(results, sort_keys=True).encode()).hexdigest()

    def facts(self, out: Path) -> dict[str, Any]:
        found = self._read(out)
        rows = {name: row for name, row in zip(found, _rows(found))}
        return rows | ({"gain": self._gain(found)} if len(found) > 1 else {})

    def show(self, out: Path) -> None:
        found = self._read(out)
        show(_rows(found), as_json=False, title=f"{self.episodes} episodes, seed {self.seed}")
        if len(found) > 1:
            for what, (gain, low, high) in self._gain(found).items():
                who = f"{self.runs[-1]} over {self.runs[0]}"
                print(f"{who}, {what}: {gain:+.3g} (95 % {low:+.3g} to {high:+.3g})")

    def _gain(self, found: Mapping[str, Any]) -> dict[str, tuple[float, float, float]]:
        """What the last policy adds to the first, episode by episode."""
        before, after = (found[name]["episodes"] for name in (self.runs[0], self.runs[-1]))
        gains = {"return": _paired(before, after, "return")}
        if all(e["success"] is not None for e in before + after):
            gains["success"] = _paired(before, after, "success")
        return gains

    def _read(self, out: Path) -> dict[str, Any]:
        return {name: json.loads((out / f"{name}.json").read_text()) for name in self.runs}


def _paired(before: list[Any], after: list[Any], key: str) -> tuple[float, float, float]:
    both = [pair for pair in zip(before, after, strict=True) if not any(e.get("lost") for e in pair)]
    return paired_gain([[float(e[key]) for e, _ in both]], [[float(e[key]) for _, e in both]])


def _rows(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for name, result in found.items():
        row = {"policy": name, "return": result["mean_return"], "return_ci95": result["ci95"]}
        rate, num = result["success_rate"], len(result["episodes"])
        interval = None if rate is None else wilson(round(rate * num), num)
        shown = None if interval is None else f"{interval[0]:.1%} to {interval[1]:.1%}"
        rows.append(row | {"success": None if rate is None else f"{rate:.1%}", "success_ci95": shown})
    return rows
