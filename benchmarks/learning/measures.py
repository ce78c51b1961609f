"""Numbers of a whole run that no metric is, by the names that `Claim.measures` has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rollbus_envs import digit_images

Rows = Sequence[Mapping[str, Any]]


def tokens_learned(rows: Rows, episodes: Rows) -> float:
    """Tokens of all updates of ``rows``; 0 where an algorithm counts none."""
    return float(sum(row.get("tokens") or 0.0 for row in rows))


def classes_covered(rows: Rows, episodes: Rows) -> float:
    """Digits of which at least one of the evaluated ``episodes`` that was asked for it shows it."""
    right = np.array([episode["seed"] for episode in episodes if episode["success"]], np.uint64)
    return float(len(np.unique(digit_images.asked(right))))


MEASURES: dict[str, Callable[[Rows, Rows], float]] = {
    "tokens_learned": tokens_learned, "classes_covered": classes_covered,
}  # fmt: skip
