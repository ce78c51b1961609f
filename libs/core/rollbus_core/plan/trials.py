"""What a prediction is based on: the model alone, or the model held against a run of some seconds.

The model knows what everybody uses, not how a kernel places and delays more processes than there are cores.
A trial shows it: its rate over what the model says of the same layout and episodes is a factor, which holds
for what is near the trial. Every prediction says which trial it leans on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from rollbus_core.plan.layouts import Layout

#: Above this share of the cores used by others a trial is no measure of the machine.
DISTURBED = 0.08


class Tried(BaseModel):
    """Runs of one layout on one host: how fast they were, and what the model says of the same."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    num_cores: int = Field(gt=0)
    #: Names of the processes, and the rows of each slice by hub.
    processes: tuple[str, ...]
    slices: tuple[tuple[int, ...], ...]
    #: Of each run, and the model's at the same episode length.
    steps_per_s: tuple[float, ...] = Field(min_length=1)
    said_per_s: float = Field(gt=0)
    #: Seconds that were counted in all, and the mean length of the episodes that ended in them.
    seconds: float = Field(0.0, ge=0)
    #: Cores that other programs used meanwhile.
    others_cores: float = Field(0.0, ge=0)
    episode_steps: float = Field(gt=0)

    @property
    def factor(self) -> float:
        """What the model's rate must be multiplied by."""
        return sum(self.steps_per_s) / len(self.steps_per_s) / self.said_per_s


class Basis(NamedTuple):
    """Why a prediction is what it is."""

    factor: float
    #: "measured trial", "extrapolated" or "model alone".
    kind: str
    #: Which trial, and what it showed.
    text: str


def basis(layout: Layout, trials: Sequence[Tried]) -> Basis:
    """The factor for ``layout`` from the nearest of ``trials``: of itself, else of its kind, else none.

    Its kind: one host with as many cores, and hub and actor in one process, or not.
    """
    near = [each for each in trials if len(layout.hosts) == 1 and each.num_cores == layout.hosts[0].num_cores]
    for each in near:
        if _itself(layout, each):
            return Basis(each.factor, "measured trial", f"measured trial: {_told(each)}")
    for each in near:
        if _fused([p.name for p in layout.hosts[0].processes]) == _fused(each.processes):
            of = f"{', '.join(each.processes)} with slices of {_rows(each)} rows"
            return Basis(each.factor, "extrapolated", f"extrapolated from a trial of {of}: {_told(each)}")
    return Basis(
        1.0, "model alone", "the model alone: no trial was of one host with as many cores and such processes"
    )


def _itself(layout: Layout, tried: Tried) -> bool:
    (host,) = layout.hosts
    return tuple(p.name for p in host.processes) == tried.processes and host.slices == tried.slices


def _fused(names: Sequence[str]) -> bool:
    return any({"hub", "actor"} <= set(name.rsplit("-", 1)[0].split("+")) for name in names)


def _rows(tried: Tried) -> str:
    return " | ".join(" ".join(map(str, rows)) for rows in tried.slices)


def _told(tried: Tried) -> str:
    runs = " and ".join(f"{each:,.0f}" for each in tried.steps_per_s)
    busy = (
        f"; other programs used {tried.others_cores:.1f} cores meanwhile, so plan again when they do not"
        if tried.others_cores > DISTURBED * tried.num_cores
        else ""
    )
    return (
        f"{runs} steps/s in {tried.seconds:.1f} s with episodes of {tried.episode_steps:,.0f} steps; "
        f"of the same the model alone says {tried.said_per_s:,.0f} (x {tried.factor:.2f}){busy}"
    )
