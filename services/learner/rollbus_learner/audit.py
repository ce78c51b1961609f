"""What was applied, chunk by chunk, so that an outside program can look for holes and repeats."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rollbus_core.audit import chunk_record
from rollbus_core.lines import LineFile
from rollbus_core.version import Version
from rollbus_learner.slab_views import Slabs
from rollbus_wire.errors import PeerLost
from rollbus_wire.messages import Batch


class Audit:
    """Appends to ``applied.jsonl``, ``drawn.jsonl``, ``unread.jsonl`` and ``lineages.jsonl``.

    What a dead lineage applied after the fork point of the next one is void.
    """

    def __init__(self, folder: Path) -> None:
        names = ("applied", "drawn", "unread", "lineages")
        self._files = {name: LineFile(folder / f"{name}.jsonl") for name in names}
        #: Replay: the newest generation seen of each cell.
        self._seen: dict[tuple[int, int], int] = {}

    def began(self, version: Version, applied: int, passed_over: Iterable[tuple[int, int]] = ()) -> None:
        """A learner goes on from ``version``, which holds the batches up to ``applied``.

        ``passed_over``: versions of newer checkpoints, which are damaged.
        """
        damaged = [list(each) for each in passed_over]
        record: dict[str, Any] = {"version": list(version), "applied": applied}
        self._files["lineages"].put(record | ({"passed_over": damaged} if damaged else {}))

    def applied(
        self, slabs: Slabs, batch: Batch, version: Version, unread: Mapping[int, str], asked: float = 0.0
    ) -> None:
        """``batch`` went into the update that made ``version``, but for ``unread``: place -> why.

        ``asked``: monotonic time before which it cannot have been drawn.
        """
        if batch.chunk is None:
            self._whole_chunks(slabs, batch, version, unread)
        else:
            self._draw(slabs, batch, version, asked)

    def _whole_chunks(self, slabs: Slabs, batch: Batch, version: Version, unread: Mapping[int, str]) -> None:
        for place, item in enumerate(batch.chunks):
            record: dict[str, Any] = {"batch": batch.sequence, "version": list(version)}
            record |= {name: item[name] for name in ("sequence", "slice")}
            reason = unread.get(place, "")
            cell = None if reason else cell_columns(slabs, item)
            if cell is None:
                self._files["unread"].put(record | {"reason": reason or "stale"})
            else:
                self._files["applied"].put(record | chunk_record(cell, item["lengths"]))

    def _draw(self, slabs: Slabs, batch: Batch, version: Version, asked: float) -> None:
        assert batch.chunk is not None and batch.chunk_slab is not None
        assert batch.chunk_offset is not None and batch.chunk_generation is not None
        new = []
        for number in np.unique(batch.chunk):
            slab = batch.slabs[int(batch.chunk_slab[number])]
            place = int(slab["slab"]), int(batch.chunk_offset[number])
            generation = int(batch.chunk_generation[number])
            if self._seen.get(place) == generation:
                continue
            cell = cell_columns(slabs, slab | {"offset": place[1], "generation": generation})
            if cell is not None:
                self._seen[place] = generation
                new.append(chunk_record(cell, cell["lengths"])["rows"])
        record = {"batch": batch.sequence, "version": list(version), "time": asked}
        self._files["drawn"].put(record | {"drawn": int(batch.chunk.size), "new": new})

    @property
    def files(self) -> Collection[LineFile]:
        """What it writes to."""
        return self._files.values()

    def flush(self) -> None:
        """Write what a full disk had no room for; called in every turn."""
        for file in self._files.values():
            file.flush()

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()


def cell_columns(slabs: Slabs, item: Mapping[str, Any]) -> dict[str, np.ndarray] | None:
    """The columns of the cell that ``item`` names; None if the store has given it away."""
    try:
        view = slabs.open(item)
    except PeerLost:
        return None
    cell = view.cell(int(item["offset"]))
    if int(view.generations[cell]) != int(item["generation"]):
        return None
    return {name: column[cell] for name, column in view.columns.items()}
