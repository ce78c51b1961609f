"""What a run leaves behind for people: summary.json and a return curve."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollbus_core import extras
from rollbus_core.checkpoints import write_atomic
from rollbus_core.config.models import RunConfig
from rollbus_core.metrics import summary
from rollbus_core.paths import RunPaths

#: Characters of a run's name in a legend, which would leave no room for the curve.
MAX_LABEL = 48


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a JSON-lines file; what is torn or damaged is left out, a missing file is empty."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_bytes().splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def write_summary(paths: RunPaths, *, wall_s: float, stopped_by: str, run: RunConfig) -> dict[str, Any]:
    """Compute and write summary.json from metrics.jsonl and evaluations.jsonl.

    ``stopped_by``: who ended the run before the learner did, or "".
    """
    evaluations = read_lines(paths.evaluations)
    data = summary([row for row in read_lines(paths.metrics) if _is_update(row)])
    data |= {"wall_s": wall_s, "stopped_by": stopped_by or _end_of(data, run)}
    if evaluations:
        by_best = stopped_by == "evaluation"
        chosen = max(evaluations, key=lambda e: e["mean_return"]) if by_best else evaluations[-1]
        data["evaluation"] = {k: v for k, v in chosen.items() if k != "episodes"}
        data["mean_return"] = chosen["mean_return"]
    write_atomic(paths.summary, json.dumps(data, indent=1).encode())
    return data


def _is_update(row: dict[str, Any]) -> bool:
    """Whether a row has what a summary needs; another is damaged."""
    return all(isinstance(row.get(name), (int, float)) for name in ("update", "env_steps", "time"))


def _end_of(data: dict[str, Any], run: RunConfig) -> str:
    if run.total_updates and data["updates"] >= run.total_updates:
        return "total_updates"
    if data["env_steps"] >= run.total_steps:
        return "total_steps"
    return "wall_limit" if run.wall_limit_s else "a signal to its learner"


def prepare_drawing() -> None:
    """Import what `draw_curve` needs ahead of time; without it nothing is drawn."""
    with contextlib.suppress(ModuleNotFoundError):
        import matplotlib.backends.backend_agg
        import matplotlib.figure  # noqa: F401


def draw_curve(paths_list: Sequence[RunPaths], target: Path) -> bool:
    """Training return and evaluations over steps as a PNG; False without matplotlib or data."""
    trained = [
        [row for row in read_lines(paths.metrics) if row.get("return_mean") is not None]
        for paths in paths_list
    ]
    evaluated = [e for paths in paths_list for e in read_lines(paths.evaluations)]
    if not evaluated and not any(trained):
        return False  # before the import, which takes longer than all else at the end of a run
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        return False
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    by_updates = bool(evaluated) and not any(e["env_steps"] for e in evaluated)
    axes = figure.add_subplot(xlabel="updates" if by_updates else "environment steps", ylabel="return")
    for index, (paths, rows) in enumerate(zip(paths_list, trained, strict=True)):
        evaluations, name = read_lines(paths.evaluations), paths.root.name
        if len(name) > MAX_LABEL:
            name = "…" + name[1 - MAX_LABEL :]  # its end is the date
        colour = f"C{index % 10}"
        if rows:
            axes.plot(
                [r["env_steps"] for r in rows], [r["return_mean"] for r in rows],
                color=colour, alpha=0.5, linewidth=1, label=f"{name}: training",
            )  # fmt: skip
        if evaluations:
            axes.errorbar(
                [_updates_of(e) if by_updates else e["env_steps"] for e in evaluations],
                [e["mean_return"] for e in evaluations],
                [e["ci95"] for e in evaluations], color=colour, marker="o", markersize=3, capsize=2,
                label=f"{name}: evaluation (95 % interval)",
            )  # fmt: skip
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(target, dpi=120)
    return True


def why_no_curve() -> str:
    """Why `draw_curve` drew nothing."""
    if extras.missing(["matplotlib"]):
        return f"matplotlib is not installed; {extras.install_line([extras.requirement('matplotlib')])}"
    return "no episode has ended"


def _updates_of(evaluation: dict[str, Any]) -> int:
    return int(evaluation["version"].split(".")[-1])
