"""Train the arms of claims and keep what they came to, so that what was measured is not measured again."""

from __future__ import annotations

import hashlib
import json
import shutil
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import machine
import yaml

from learning.claims import Arm, Claim
from learning.measures import MEASURES
from rollbus_core.paths import RunPaths
from rollbus_launch.records import read_lines

ROOT = Path(__file__).resolve().parents[2]
#: Seconds of one run; steps and updates of a smoke run; points of a curve that are kept.
LIMIT_S, SMOKE_STEPS, SMOKE_UPDATES, POINTS = 600, 4096, 5, 60


@dataclass
class Ledger:
    """What is known, claim -> arm -> seed -> record, in one JSON file."""

    path: Path
    records: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def read(cls, path: Path) -> Ledger:
        """The ledger at ``path``, empty if there is none."""
        return cls(path, json.loads(path.read_text()) if path.exists() else {})

    def find(self, claim: str, arm: str, seed: int) -> dict[str, Any] | None:
        """The record of one run."""
        return self.records.get(claim, {}).get(arm, {}).get(str(seed))

    def keep(self, claim: str, arm: str, seed: int, record: dict[str, Any]) -> None:
        """Add it, and write the file."""
        with self.lock:
            self.records.setdefault(claim, {}).setdefault(arm, {})[str(seed)] = record
            self.path.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps(self.records, sort_keys=True, separators=(",", ":"))
            # One record a line, so that a change shows what was measured anew.
            self.path.write_text(text.replace('"commit":', '\n"commit":') + "\n")


class Trainer:
    """Runs of one claim, in ``folder``; several threads may ask for different seeds."""

    def __init__(self, name: str, claim: Claim, ledger: Ledger, folder: Path, smoke: bool) -> None:
        self.name, self.claim, self._ledger, self._smoke = name, claim, ledger, smoke
        self.folder, self._shared = folder / name, threading.RLock()

    def measure(self, arm: str, seed: int) -> None:
        """See to it that the record of ``arm`` and ``seed`` is there. Raises CalledProcessError."""
        if self.claim.arms[arm].once:
            with self._shared:
                self._measure(arm, self.claim.seeds[0])
        else:
            self._measure(arm, seed)

    def _measure(self, arm: str, seed: int) -> None:
        known, key = self._ledger.find(self.name, arm, seed), self.key(arm)
        if known is not None and known["key"] == key:
            return
        paths = self._run(arm, seed)
        self._ledger.keep(self.name, arm, seed, {"key": key, **self._record(paths)})

    def key(self, arm: str) -> str:
        """Digest of all that decides what a run of ``arm`` learns."""
        chosen = self.claim.arms[arm]
        recipe = yaml.safe_load((ROOT / f"recipes/{chosen.recipe}.yaml").read_text())
        uses = {other: self.key(other) for other in self._uses(chosen)}
        parts = [recipe, chosen.set, self.claim.before, self.claim.episodes, uses, self._smoke]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]

    def _uses(self, arm: Arm) -> list[str]:
        """Arms whose runs ``arm`` needs."""
        named = [other for other in self.claim.arms if any(f"{{{other}}}" in text for text in arm.set)]
        return sorted({*named, *([arm.start] if arm.start else [])})

    def _place(self, arm: str, seed: int) -> RunPaths:
        name = arm if self.claim.arms[arm].once else f"{arm}-{seed}"
        return RunPaths(self.folder / name)

    def _run(self, arm: str, seed: int) -> RunPaths:
        """The folder of a finished run, trained unless it is there."""
        paths, chosen = self._place(arm, seed), self.claim.arms[arm]
        self._prepare()
        for other in self._uses(chosen):
            self._needed(other, seed)
        done, key = paths.root / "curve.key", self.key(arm)
        if not done.exists() or done.read_text() != key:
            shutil.rmtree(paths.root, ignore_errors=True)
            start = [f"run.start_from={self._place(chosen.start, seed).root}"] if chosen.start else []
            settings = [self._filled(text, seed) for text in chosen.set]
            limits = [f"run.seed={seed}", f"run.wall_limit_s={LIMIT_S}", *self._smoked(chosen)]
            recipe = f"recipes/{chosen.recipe}.yaml"
            rollbus("train", recipe, *start, *settings, *limits, "--run-dir", str(paths.root))
            done.write_text(key)
        return paths

    def _needed(self, arm: str, seed: int) -> None:
        if self.claim.arms[arm].once:
            with self._shared:
                self._run(arm, self.claim.seeds[0])
        else:
            self._run(arm, seed)

    def _prepare(self) -> None:
        """Make the data sets, all of them or none."""
        with self._shared:
            made = self.folder / "data.made"
            if made.exists() and made.read_text() == "\n".join(self.claim.before):
                return
            shutil.rmtree(self.folder / "data", ignore_errors=True)
            for command in self.claim.before:
                rollbus(*self._filled(command, 0).split())
            made.parent.mkdir(parents=True, exist_ok=True)
            made.write_text("\n".join(self.claim.before))

    def _filled(self, text: str, seed: int) -> str:
        text = text.replace("{data}", str(self.folder / "data"))
        for other in self.claim.arms:
            text = text.replace(f"{{{other}}}", str(self._place(other, seed).root))
        return text

    def _smoked(self, arm: Arm) -> list[str]:
        if not self._smoke:
            return []
        run = yaml.safe_load((ROOT / f"recipes/{arm.recipe}.yaml").read_text()).get("run", {})
        by_updates = "total_updates" in run
        return [f"run.total_updates={SMOKE_UPDATES}" if by_updates else f"run.total_steps={SMOKE_STEPS}"]

    def _record(self, paths: RunPaths) -> dict[str, Any]:
        """Evaluate the last checkpoint and gather what the run left."""
        number = ["--checkpoint", "last", "--episodes", str(self.claim.episodes)]
        result = json.loads(rollbus("eval", str(paths.root), *number, "--json"))
        rows, summary = read_lines(paths.metrics), json.loads(paths.summary.read_text())
        values = [float(episode[self.claim.of]) for episode in result["episodes"]]
        measured = {name: MEASURES[name](rows, result["episodes"]) for name in self.claim.measures}
        steps, wall_s = int(summary.get("env_steps", 0)), float(summary["wall_s"])
        return {
            "commit": _commit(), "date": time.strftime("%Y-%m-%d"), "machine": machine.describe()["cpu"],
            "values": [float(f"{value:.5g}") for value in values],
            "figures": {
                "env_steps": steps, "wall_s": round(wall_s, 1), **measured,
                **_figures(rows, self.claim.watch),
            },
            "curve": _curve(rows), "evaluations": _evaluations(read_lines(paths.evaluations), self.claim.of),
        }  # fmt: skip


def rollbus(*arguments: str) -> str:
    """What the command prints; on failure that is shown and CalledProcessError raised."""
    command = [sys.executable, "-m", "rollbus_launch", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        print(f"{' '.join(command[2:])}\n{done.stdout[-2000:]}{done.stderr[-2000:]}", file=sys.stderr)
    done.check_returncode()
    return done.stdout


def _figures(rows: list[dict[str, Any]], watch: list[str]) -> dict[str, float]:
    """Steps/s over the later three quarters of a run, and medians of what is watched."""
    found = {}
    late = rows[len(rows) // 4 :]
    if len(late) > 1 and "time" in late[0] and late[-1]["env_steps"] > late[0]["env_steps"]:
        passed = late[-1]["time"] - late[0]["time"]
        found["steps_per_s"] = round((late[-1]["env_steps"] - late[0]["env_steps"]) / passed, 1)
    for name in watch:
        values = [float(row[name]) for row in rows if row.get(name) is not None]
        if values:
            found[name] = float(f"{statistics.median(values):.4g}")
    return found


def _curve(rows: list[dict[str, Any]]) -> list[list[float]]:
    """[environment steps or updates, mean return] of training, thinned."""
    rows = [row for row in rows if row.get("return_mean") is not None]
    thinned = rows[:: max(1, len(rows) // POINTS)]
    return [[row["env_steps"], float(f"{row['return_mean']:.4g}")] for row in thinned]


def _evaluations(rows: list[dict[str, Any]], of: str) -> list[list[float]]:
    """[environment steps or updates, mean] of the evaluations while it trained."""
    mean = "success_rate" if of == "success" else "mean_return"
    by_updates = not any(row["env_steps"] for row in rows)
    return [
        [int(row["version"].split(".")[-1]) if by_updates else row["env_steps"], float(f"{row[mean]:.4g}")]
        for row in rows
        if row[mean] is not None
    ]


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip() or "unknown"
