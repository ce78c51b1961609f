"""Put runs side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rollbus_core.paths import RunPaths
from rollbus_launch.records import read_lines
from rollbus_wire.errors import ConfigError


def compare_rows(runs: Sequence[RunPaths]) -> list[dict[str, Any]]:
    """One row per run: its last evaluation with interval, steps, speed and lag."""
    rows = []
    for paths in runs:
        summary = _summary(paths)
        evaluations = read_lines(paths.evaluations)
        last = evaluations[-1] if evaluations else {}
        best = max((e["mean_return"] for e in evaluations), default=None)
        rows.append(
            {
                "run": paths.root.name,
                "env_steps": summary.get("env_steps"),
                "last_return": last.get("mean_return"),
                "ci95": last.get("ci95"),
                "best_return": best,
                "success_rate": last.get("success_rate"),
                "episodes": len(last.get("episodes", ())),
                "steps_per_s": summary.get("env_steps_per_s"),
                "lag": summary.get("lag"),
                "training_s": summary.get("training_s"),
            }
        )
    return rows


def _summary(paths: RunPaths) -> dict[str, Any]:
    """What the run came to; empty while it runs."""
    if not paths.summary.exists():
        return {}
    try:
        return dict(json.loads(paths.summary.read_text()))
    except ValueError as error:
        raise ConfigError(
            f"{paths.summary} is damaged: {error}; remove it to compare the run without it"
        ) from None
