"""The valid key that someone most likely meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

#: A name of the same section is close from here on, one of another section only if it is nearly equal.
_CLOSE, _CLOSE_ELSEWHERE = 0.57, 0.8
#: How much less alike a name of the same section may be than one of another.
_SAME_SECTION = 0.15


def nearest(key: str, valid: Iterable[str]) -> str:
    """The key of ``valid`` (dotted) closest to ``key``, or "" if none is close.

    Names are compared without their section; the same section is preferred. Initials count as
    close: ``lr`` is ``algorithm.learning_rate``.
    """
    section, _, name = key.rpartition(".")
    best, best_score = "", 0.0
    for candidate in valid:
        other_section, _, other = candidate.rpartition(".")
        same = other_section == section
        score = _similarity(name, other)
        if score <= (_CLOSE if same else _CLOSE_ELSEWHERE):
            continue
        score += _SAME_SECTION if same else 0.0
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
