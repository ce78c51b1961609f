"""Episodes of a replay table for the training curve: each once, though their steps are drawn many times."""

from __future__ import annotations

import numpy as np

from rollbus_learner.slab_views import Columns, Slabs
from rollbus_wire.errors import PeerLost
from rollbus_wire.messages import Batch
from rollbus_wire.spec import TASK

_FINALS = (
    "final_return", "final_length", "final_success_once", "final_success_at_end", f"final_obs/{TASK}"
)  # fmt: skip
_ENDS = ("final_slot", "lengths", "terminated", "truncated")


class FreshEpisodes:
    """Remembers which chunks came before, by the generation of their cell."""

    def __init__(self) -> None:
        self._seen: dict[int, np.ndarray] = {}

    def take(self, slabs: Slabs, message: Batch) -> Columns:
        """``final_*`` [E] of the episodes that ended in the chunks of ``message`` that are new."""
        assert message.chunk_slab is not None and message.chunk_offset is not None
        assert message.chunk_generation is not None
        found: dict[str, list[np.ndarray]] = {name: [] for name in _FINALS}
        for index, item in enumerate(message.slabs):
            try:
                view = slabs.open(item)
            except PeerLost:
                continue
            mine = message.chunk_slab == index
            cells, named = view.cell(message.chunk_offset[mine]), message.chunk_generation[mine]
            seen = self._seen.setdefault(view.slab, np.zeros(len(view.generations), np.uint64))
            new = (seen[cells] != named) & (view.generations[cells] == named)
            seen[cells] = named
            for cell in cells[new]:
                slots = _ended_slots({name: view.columns[name][cell] for name in _ENDS})
                for name in found.keys() & view.columns.keys():
                    found[name].append(view.columns[name][cell][slots])
        return {name: np.concatenate(parts) for name, parts in found.items() if parts}


def _ended_slots(cell: Columns) -> np.ndarray:
    """Final slots of the episodes that ended in a chunk; not those that were interrupted."""
    slot = cell["final_slot"]
    inside = np.arange(len(slot))[:, None] < cell["lengths"]
    return slot[inside & (slot >= 0) & (cell["terminated"] | cell["truncated"])]
