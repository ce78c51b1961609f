"""What was applied, chunk by chunk, so that an outside program can look for holes and repeats."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rollbus_core.version import Version
from rollbus_learner.slab_views import Slabs
from rollbus_wire.errors import PeerLost


class Audit:
    """Appends to ``applied.jsonl``: one line per chunk of an applied queue batch."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._lines = open(folder / "applied.jsonl", "a", buffering=1)

    def applied(self, slabs: Slabs, items: Sequence[dict[str, Any]], sequence: int, version: Version) -> None:
        """Chunks ``items`` of batch ``sequence`` went into the update that made ``version``.

        What a dead lineage applied after the fork point of the next one is void.
        """
        for item in items:
            try:
                view = slabs.open(item)
            except PeerLost:
                continue
            cell = view.cell(int(item["offset"]))
            if int(view.generations[cell]) != int(item["generation"]):
                continue
            columns = {name: column[cell] for name, column in view.columns.items()}
            record: dict[str, Any] = {"batch": sequence, "version": list(version)}
            record |= {name: item[name] for name in ("sequence", "slice")}
            record |= chunk_record(columns, item["lengths"])
            self._lines.write(json.dumps(record) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._lines.close()


def chunk_record(cell: dict[str, np.ndarray], lengths: Sequence[int]) -> dict[str, Any]:
    """``rows``: per row [episode, first step, decisions] of each run of one episode without a hole.

    ``terminated``, ``truncated``, ``interrupted``: [decision, row] where one is set. ``versions``: the
    oldest and the newest that decided, ``lineage.number``.
    """
    inside = np.arange(len(cell["episode"]))[:, None] < np.asarray(lengths)
    rows = []
    for row, length in enumerate(map(int, lengths)):
        episode, step = cell["episode"][:length, row], cell["step"][:length, row]
        executed = cell["num_steps"][: max(0, length - 1), row]
        breaks = (np.diff(episode) != 0) | (np.diff(step) != executed)
        begins = np.concatenate([[0], np.flatnonzero(breaks) + 1, [length]]) if length else [0]
        rows.append([[int(episode[a]), int(step[a]), int(b - a)] for a, b in zip(begins[:-1], begins[1:])])
    ends = {
        name: np.argwhere(cell[name] & inside).tolist() for name in ("terminated", "truncated", "interrupted")
    }
    versions = cell["version"][inside]
    packed = [int(versions.min()), int(versions.max())] if versions.size else []
    return {"rows": rows, **ends, "versions": [str(Version.unpack(v)) for v in packed]}
