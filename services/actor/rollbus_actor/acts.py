"""Parts of decisions, and parts put together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rollbus_policies.base import Act


def rows_of(act: Act, rows: Any) -> Act:
    """The decisions of ``rows``, a slice or indices."""
    extras = {name: value[rows] for name, value in act.extras.items()}
    state = None if act.state is None else act.state[rows]
    source = None if act.source is None else act.source[rows]
    return Act(act.env_action[rows], act.action[rows], state, extras, source)


def joined(acts: Sequence[Act]) -> Act:
    """The rows of ``acts``, which are alike, one after the other."""
    if len(acts) == 1:
        return acts[0]
    return Act(
        np.concatenate([act.env_action for act in acts]),
        np.concatenate([act.action for act in acts]),
        _joined([act.state for act in acts]),
        {name: np.concatenate([act.extras[name] for act in acts]) for name in acts[0].extras},
        _joined([act.source for act in acts]),
    )


def _joined(arrays: Sequence[np.ndarray | None]) -> np.ndarray | None:
    there = [array for array in arrays if array is not None]
    return np.concatenate(there) if there else None
