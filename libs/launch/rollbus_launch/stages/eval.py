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
        gain = self._gain(found)
        return rows | ({"gain": gain} if gain else {})

    def show(self, out: Path) -> None:
        found = self._read(out)
        show(_rows(found), as_json=False, title=f"{self.episodes} episodes, seed {self.seed}")
        if len(found) > 1:
            who = f"{self.runs[-1]} over {self.runs[0]}"
            gain = self._gain(found)
            for what, (mean, low, high) in gain.items():
                print(f"{who}, {what}: {mean:+.3g} (95 % {low:+.3g} to {high:+.3g})")
            if not gain:
                print(f"{who}: no episode was finished by both")

    def _gain(self, found: Mapping[str, Any]) -> dict[str, tuple[float, float, float]]:
        """What the last policy adds to the first, over the episodes that both finished; empty without any."""
        before, after = (found[name]["episodes"] for name in (self.runs[0], self.runs[-1]))
        both = [pair for pair in zip(before, after, strict=True) if not any(e.get("lost") for e in pair)]
        if len(found) < 2 or not both:
            return {}
        gains = {"return": _paired(both, "return")}
        if all(e["success"] is not None for pair in both for e in pair):
            gains["success"] = _paired(both, "success")
        return gains

    def _read(self, out: Path) -> dict[str, Any]:
        return {name: json.loads((out / f"{name}.json").read_text()) for name in self.runs}


def _paired(both: list[tuple[Any, Any]], key: str) -> tuple[float, float, float]:
    return paired_gain([[float(e[key]) for e, _ in both]], [[float(e[key]) for _, e in both]])


def _rows(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for name, result in found.items():
        row = {"policy": name, "return": result["mean_return"], "return_ci95": result["ci95"]}
        rate, num = result["success_rate"], sum(not e.get("lost") for e in result["episodes"])
        interval = None if rate is None else wilson(round(rate * num), num)
        shown = None if interval is None else f"{interval[0]:.1%} to {interval[1]:.1%}"
        rows.append(row | {"success": None if rate is None else f"{rate:.1%}", "success_ci95": shown})
    return rows
