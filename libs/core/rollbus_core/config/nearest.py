"""The valid key that someone most likely meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_CLOSE = 0.62


def nearest(key: str, valid: Iterable[str]) -> str:
    """The key of ``valid`` (dotted) closest to ``key``, or "" if none is close.

    Names are compared without their section; the same section breaks ties. Initials count as
    close: ``lr`` is ``algorithm.learning_rate``.
    """
    section, _, name = key.rpartition(".")
    best, best_score = "", _CLOSE
    for candidate in valid:
        other_section, _, other = candidate.rpartition(".")
        score = _similarity(name, other)
        if other_section == section:
            score += 0.05
        if score > best_score:
            best, best_score = candidate, score
    return best


def hint(key: str, valid: Iterable[str]) -> str:
    """``"; did you mean 'x'?"``, or ""."""
    near = nearest(key, valid)
    return f"; did you mean {near!r}?" if near else ""


def _similarity(name: str, other: str) -> float:
    name, other = name.lower().replace("-", "_"), other.lower()
    if name == other:
        return 1.0
    if len(name) > 1 and name in ("".join(w[0] for w in other.split("_")), other.replace("_", "")):
        return 0.95
    if len(name) > 2 and name in other.split("_"):
        return 0.75
    return difflib.SequenceMatcher(None, name, other).ratio()
