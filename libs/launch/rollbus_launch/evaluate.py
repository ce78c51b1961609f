"""Evaluate one checkpoint: a hub and an actor in this process over a local link.

One version, pinned; an exact list of episodes; forwards padded to one fixed batch, so that the number
of environments that run at once changes nothing.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollbus_launch.episode_recorder import EpisodeRecorder

from rollbus_core.access import Access

#: 97.5 % quantile of Student's t by degrees of freedom; the normal one beyond the table.
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """What is evaluated."""

    episodes: int
    #: Rows at once; does not change results.
    num_envs: int
    seed: int
    #: "deterministic" or "stochastic".
    mode: str
    #: With placement dial_in: where the environments dial in.
    listen: str = ""
    #: Takes down what happens (`rollbus collect`); its episodes have seeds that no evaluation has.
    collect: EpisodeRecorder | None = None


class Running:
    """One evaluation that is going on: ``services`` are to be polled until `done`."""

    def __init__(self, checkpoint: Path, resolved: Any, settings: Settings, access: Access) -> None:
        from rollbus_launch import build

        self.checkpoint, self.settings = checkpoint, settings
        self._pair = build.evaluation(checkpoint, resolved, settings, access)
        self.services = [self._pair.hub, self._pair.actor]

    @property
    def done(self) -> bool:
        """Whether every episode of the list has ended."""
        return bool(self._pair.episodes.done)

    def expect_another(self) -> None:
        """Environments that dialled in are asked to wait for the next evaluation."""
        self._pair.hub.followed = True

    def result(self) -> Evaluation:
        """The figures; only when `done`."""
        pair, settings = self._pair, self.settings
        return summarise(
            pair.episodes.results, success=pair.spec.success, checkpoint=str(self.checkpoint),
            version=pair.version, env_steps=pair.env_steps, mode=settings.mode, seed=settings.seed,
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
    results: list[dict[str, Any]], *, success: str, checkpoint: str, version: str, env_steps: int,
    mode: str, seed: int,
) -> Evaluation:  # fmt: skip
    """Means and intervals over ``results`` of the hub's `EpisodeList`, in the order of their ids."""
    results = sorted(results, key=lambda r: r["id"])
    returns = [float(r["return"]) for r in results]

    def rate(key: str) -> float | None:
        flags = [r[key] for r in results]
        return None if any(f is None for f in flags) else sum(map(bool, flags)) / len(flags)

    once, at_end = rate("success_once"), rate("success_at_end")
    chosen = "success_at_end" if success == "at_end" else "success_once"
    episodes = [
        {
            "id": r["id"], "seed": r["seed"], "return": float(r["return"]), "length": r["length"],
            "success": r[chosen],
        }
        for r in results
    ]  # fmt: skip
    return Evaluation(
        checkpoint, version, env_steps, mode, seed, statistics.fmean(returns), ci95(returns),
        statistics.fmean(r["length"] for r in results),
        at_end if chosen == "success_at_end" else once, once, at_end, episodes,
    )  # fmt: skip


def evaluate(checkpoint: Path, resolved: Any, settings: Settings) -> Evaluation:
    """Run one evaluation in this process until it is done."""
    from rollbus_core import service

    access = Access.from_environment()
    running = Running(checkpoint, resolved, settings, access)
    service.run(running.services, should_stop=lambda: running.done, drain_s=1.0)
    access.close()
    return running.result()
