"""What an audit needs to know of a chunk, written alike by those who make and those who apply it.

``audit/`` of a run folder holds one file per writer and kind, one JSON map per line:

- ``sent-<producer>.jsonl``: an actor's commits, {ticket, slice, rows, ...}, and their answers,
  {answer: ticket, sequence, reason}
- ``applied.jsonl``: chunks of an applied queue batch; ``drawn.jsonl``: draws from a replay table and the
  chunks that were seen for the first time; ``unread.jsonl``: chunks that could not be used, and why;
  ``lineages.jsonl``: where each start of the learner went on
- ``dropped.jsonl``: chunks that the store gave up after it had acknowledged them

`rollbus audit` reads them. Times are monotonic: one machine's, whatever its wall clock does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rollbus_core.version import Version

#: Columns of a cell that `chunk_record` reads.
COLUMNS = ("episode", "step", "num_steps", "terminated", "truncated", "interrupted", "version")


def chunk_record(cell: Mapping[str, np.ndarray], lengths: Sequence[int] | np.ndarray) -> dict[str, Any]:
    """``rows``: per row [episode, first step, number of steps] of each run of one episode without a hole.

    ``cell`` holds `COLUMNS` [T, N]. ``terminated``, ``truncated``, ``interrupted``: [decision, row] where
    one is set. ``versions``: the oldest and the newest that decided, ``lineage.number``.
    """
    inside = np.arange(len(cell["episode"]))[:, None] < np.asarray(lengths)
    rows = [_runs(cell, row, int(length)) for row, length in enumerate(lengths)]
    ends = {
        name: np.argwhere(cell[name] & inside).tolist() for name in ("terminated", "truncated", "interrupted")
    }
    versions = cell["version"][inside]
    packed = [int(versions.min()), int(versions.max())] if versions.size else []
    return {"rows": rows, **ends, "versions": [str(Version.unpack(v)) for v in packed]}


def _runs(cell: Mapping[str, np.ndarray], row: int, length: int) -> list[list[int]]:
    if not length:
        return []
    episode, step = cell["episode"][:length, row], cell["step"][:length, row]
    # An interrupted decision has executed nothing, but its step was begun.
    executed = np.maximum(cell["num_steps"][:length, row], 1)
    breaks = (np.diff(episode) != 0) | (np.diff(step) != executed[:-1])
    begins = np.concatenate([[0], np.flatnonzero(breaks) + 1, [length]])
    return [
        [int(episode[a]), int(step[a]), int(executed[a:b].sum())] for a, b in zip(begins[:-1], begins[1:])
    ]
