"""What an evaluation came to: means, rates and their intervals."""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, dataclass
from typing import Any

from rollbus_launch.evaluation.intervals import wilson
from rollbus_wire.errors import PeerLost
from rollbus_wire.spec import EnvSpec

#: Of all tasks together, beside their names; no task may be called so.
MEAN = "(mean)"

#: 97.5 % quantile of Student's t by degrees of freedom; the normal one beyond the table.
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


@dataclass
class Evaluation:
    """The result of one evaluation."""

    checkpoint: str
    version: str
    env_steps: int
    mode: str
    seed: int
    mean_return: float
    #: Half width of the 95 % interval of the mean return (Student's t).
    ci95: float
    mean_length: float
    #: ``success_once`` or ``success_at_end`` as the environment states; None without a signal.
    success_rate: float | None
    success_once: float | None
    success_at_end: float | None
    #: Episodes that the environment could not finish: no success, and in no mean of returns and lengths.
    lost: int
    #: Task -> episodes, mean_return, ci95, mean_length, success_rate, success_ci95, and the same of `MEAN`,
    #: the mean over them; empty without tasks.
    tasks: dict[str, dict[str, Any]]
    episodes: list[dict[str, Any]]

    def to_data(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def ci95(values: list[float]) -> float:
    """Half width of the 95 % interval of the mean of ``values``; 0 for fewer than two."""
    n = len(values)
    if n < 2:
        return 0.0
    quantile = _T[n - 2] if n - 2 < len(_T) else 1.96
    return quantile * statistics.stdev(values) / math.sqrt(n)


def summarise(
    results: list[dict[str, Any]], *, spec: EnvSpec, checkpoint: str, version: str, env_steps: int,
    mode: str, seed: int,
) -> Evaluation:  # fmt: skip
    """Means and intervals over ``results`` of the hub's `EpisodeList`, in the order of their ids.

    Raises `PeerLost` where no episode, or none of a task, was finished.
    """
    results = sorted(results, key=lambda r: r["id"])
    finished = [r for r in results if not r["lost"]]
    for task in {r["task"] for r in results} - {r["task"] for r in finished}:
        of = f" of task {spec.tasks[task].name}" if spec.tasks else ""
        raise PeerLost(
            f"the environment failed in every episode{of} of an evaluation, in each several times: there is "
            "no return to tell; the lines above say where"
        )
    returns = [float(r["return"]) for r in finished]

    def rate(key: str) -> float | None:
        return _rate([r[key] if spec.reports[r["task"]] else None for r in results])

    once, at_end = rate("success_once"), rate("success_at_end")
    chosen = f"success_{spec.success}"
    episodes = [
        {"id": r["id"], "seed": r["seed"]}
        | {key: None if r["lost"] else kind(r[key]) for key, kind in (("return", float), ("length", int))}
        | {"success": r[chosen] if spec.reports[r["task"]] else None}
        | ({"task": spec.tasks[r["task"]].name} if spec.tasks else {})
        | ({"lost": r["lost"]} if len(finished) < len(results) else {})
        for r in results
    ]
    return Evaluation(
        checkpoint, version, env_steps, mode, seed, statistics.fmean(returns), ci95(returns),
        statistics.fmean(r["length"] for r in finished),
        at_end if chosen == "success_at_end" else once, once, at_end, len(results) - len(finished),
        _of_tasks(episodes, spec), episodes,
    )  # fmt: skip


def _of_tasks(episodes: list[dict[str, Any]], spec: EnvSpec) -> dict[str, dict[str, Any]]:
    """Figures of each task, and of their mean, in which each counts alike; empty without tasks."""
    found = {}
    for task in spec.tasks:
        mine = [e for e in episodes if e["task"] == task.name]
        finished, rate = [e for e in mine if not e.get("lost")], _rate([e["success"] for e in mine])
        returns = [e["return"] for e in finished]
        found[task.name] = {
            "episodes": len(mine), "mean_return": statistics.fmean(returns), "ci95": ci95(returns),
            "mean_length": statistics.fmean(e["length"] for e in finished), "success_rate": rate,
            "success_ci95": None if rate is None else list(wilson(round(rate * len(mine)), len(mine))),
        }  # fmt: skip
    return found | ({MEAN: _mean_of(list(found.values()))} if found else {})


def _mean_of(tasks: list[dict[str, Any]]) -> dict[str, Any]:
    """Each of ``tasks`` counts alike; its intervals are those of a mean of independent means."""
    num, rates = len(tasks), [task["success_rate"] for task in tasks if task["success_rate"] is not None]
    return {
        "episodes": sum(task["episodes"] for task in tasks),
        "mean_return": statistics.fmean(task["mean_return"] for task in tasks),
        "ci95": math.hypot(*(task["ci95"] for task in tasks)) / num,
        "mean_length": statistics.fmean(task["mean_length"] for task in tasks),
        "success_rate": statistics.fmean(rates) if rates else None, "success_ci95": None,
    }  # fmt: skip


def _rate(flags: list[bool | None]) -> float | None:
    """Share of success among those who report it; None if nobody does."""
    known = [bool(flag) for flag in flags if flag is not None]
    return sum(known) / len(known) if known else None
