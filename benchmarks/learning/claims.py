"""Claims about learning: which arms are trained on which seeds, and what their last checkpoints must show."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

PATH = Path(__file__).with_name("claims.yaml")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Arm(_Strict):
    """One way to train."""

    recipe: str
    #: Settings, key=value; ``{data}`` is the claim's folder of data sets, ``{arm}`` another arm's run folder.
    set: list[str] = []
    #: The arm whose last checkpoint it begins with.
    start: str = ""
    #: One run that all seeds share: a frozen base.
    once: bool = False
    #: Beyond those of the claim, none of them; [1] where an arm is a look, not a claim.
    seeds: list[int] = []


class Must(_Strict):
    """What ``arm`` must show: by itself on every seed, or over another arm in the paired mean."""

    arm: str
    #: Of the evaluation, "return" or "success", or of the run, "steps_per_s" a watched metric or a measure.
    of: str = ""
    #: The arm that is subtracted, times ``times``.
    over: str = ""
    times: float = 1.0
    least: float | None = None
    most: float | None = None
    #: Where the 95 % interval of the difference must begin at the earliest.
    low: float | None = None


class Claim(_Strict):
    """Arms on one task."""

    title: str
    of: Literal["return", "success"]
    episodes: int = 100
    seeds: list[int]
    #: Commands of rollbus that make data sets, once.
    before: list[str] = []
    arms: dict[str, Arm]
    must: list[Must] = []
    #: Metrics whose median over updates is noted.
    watch: list[str] = []
    #: Numbers of a run that are noted, names of `measures.MEASURES`.
    measures: list[str] = []
    #: Whether it must have the machine to itself, because its figures are speeds.
    alone: bool = False
    #: How the settings were found, chance and the expert's figure.
    note: str = Field("", validate_default=True)

    def seeds_of(self, arm: str) -> list[int]:
        """Those that ``arm`` is trained on."""
        chosen = self.arms[arm]
        return self.seeds[:1] if chosen.once else chosen.seeds or self.seeds


def read(path: Path = PATH) -> dict[str, Claim]:
    """All claims by name. Raises ValueError where a name that is used is not an arm."""
    claims = {name: Claim(**data) for name, data in yaml.safe_load(path.read_text()).items()}
    for name, claim in claims.items():
        used: list[str] = [arm.start for arm in claim.arms.values()]
        used += [arm for must in claim.must for arm in (must.arm, must.over)]
        if unknown := sorted(set(used) - {""} - set(claim.arms)):
            raise ValueError(
                f"{path.name}: {name} names {unknown[0]!r}; its arms are {', '.join(claim.arms)}"
            )
    return claims


def smoked(claim: Claim) -> Claim:
    """``claim`` with one seed, ten episodes, and one arm of each recipe."""
    arms: dict[str, Any] = {}
    for name, arm in claim.arms.items():
        if arm.recipe not in {each.recipe for each in arms.values()}:
            arms[name] = arm.model_copy(update={"seeds": arm.seeds[:1]})
    return claim.model_copy(update={"seeds": claim.seeds[:1], "episodes": 10, "arms": arms, "must": []})
