"""Whether what was measured shows what a claim says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learning.claims import Claim, Must
from rollbus_launch.evaluation.intervals import paired_gain

#: Records of a claim: arm -> seed -> what was measured.
Records = Mapping[str, Mapping[str, Mapping[str, Any]]]


@dataclass(frozen=True)
class Verdict:
    """What came of one `Must`; ``holds`` is None while seeds are missing."""

    text: str
    holds: bool | None


def judge(claim: Claim, must: Must, records: Records) -> Verdict:
    """Compare figures of all seeds of ``must.arm`` with what is asked."""
    seeds = claim.seeds_of(must.arm)
    mine = [_figure(claim, must, must.arm, seed, records) for seed in seeds]
    other = [_figure(claim, must, must.over, seed, records) for seed in seeds] if must.over else []
    if any(value is None for value in (*mine, *other)):
        return Verdict(f"{_asked(must, claim)}: seeds are missing", None)
    if must.over:
        return _paired(claim, must, mine, other)
    means = [float(np.mean(value)) for value in mine if value is not None]
    worst = max(means) if must.least is None else min(means)
    holds = (must.least is None or min(means) >= must.least) and (
        must.most is None or max(means) <= must.most
    )
    return Verdict(f"{_asked(must, claim)}: {worst:.4g} on the worst of {len(seeds)}", holds)


def _paired(claim: Claim, must: Must, mine: list[Any], other: list[Any]) -> Verdict:
    scaled = [must.times * value for value in other]
    gain, low, high = paired_gain(scaled, mine)
    holds = must.least is None or gain >= must.least
    holds &= must.most is None or gain <= must.most
    holds &= must.low is None or low >= must.low
    return Verdict(f"{_asked(must, claim)}: {gain:+.4g} (95 % {low:+.4g} to {high:+.4g})", bool(holds))


def _figure(claim: Claim, must: Must, arm: str, seed: int, records: Records) -> NDArray[np.float64] | None:
    """Per episode [E], or one number [1] of the whole run."""
    chosen = claim.seeds_of(arm)[0] if claim.arms[arm].once else seed
    record = records.get(arm, {}).get(str(chosen))
    if record is None:
        return None
    figure = record["figures"].get(must.of)
    if must.of in ("", claim.of):
        return np.asarray(record["values"], np.float64)
    return None if figure is None else np.array([figure], np.float64)


def _asked(must: Must, claim: Claim) -> str:
    subject = must.arm if must.of in ("", claim.of) else f"{must.of} of {must.arm}"
    if must.over:
        subject += f" over {must.over}" if must.times == 1 else f" over {must.times:g} x {must.over}"
    parts = [f"at least {must.least:g}"] if must.least is not None else []
    parts += [f"at most {must.most:g}"] if must.most is not None else []
    parts += [f"interval from {must.low:g} on"] if must.low is not None else []
    return f"{subject}, {', '.join(parts)}"
