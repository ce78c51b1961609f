"""What an expert taught about drawn decisions: the actions that follow, and how their episode ended.

An action of a chunk counts as long as the expert's own actions led to where it was said: what it says where
the policy has gone meanwhile is no plan of the expert's. Both are looked for as far as the decision's chunk
of the table reaches. Symbols: S samples, C actions of one decision.
"""

from __future__ import annotations

import numpy as np

from rollbus_core.columns import SOURCES
from rollbus_learner.drawn import Part
from rollbus_learner.step_target import Target
from rollbus_learner.stretches import left_in_chunk
from rollbus_wire.spec import EXPERT_ACTION

_TAUGHT = [SOURCES.index(source) for source in ("expert", "human")]
#: How the episode ended; -1: it went on beyond the chunk, or has no signal.
SUCCESS = ("final_success_once", "final_success_at_end")


class ExpertChunks:
    """Adds ``expert_chunk`` [S, C, ...] and ``action_valid`` bool [S, C] of C > 1 actions per decision.

    ``outcome``: also ``episode_success_once`` and ``episode_success_at_end`` int8 [S].
    """

    def __init__(self, chunk: int, outcome: bool) -> None:
        self._chunk, self._outcome = chunk, outcome

    def __call__(self, part: Part, target: Target) -> None:
        """Write the columns of ``target`` at the places of ``part``."""
        if self._chunk > 1 and f"obs/{EXPERT_ACTION}" in part.view.columns:
            self._add_actions(part, target)
        if self._outcome:
            _add_outcome(part, target)

    def _add_actions(self, part: Part, target: Target) -> None:
        columns, num = part.view.columns, self._chunk
        said = columns[f"obs/{EXPERT_ACTION}"]
        last = part.time + np.minimum(left_in_chunk(part), num) - 1
        actions = target.column("expert_chunk", (num, *said.shape[3:]), said.dtype)
        valid = target.column("action_valid", (num,), np.dtype(bool))
        led = np.ones(len(part.place), bool)
        for ahead in range(num):
            led &= part.time + ahead <= last
            time = np.minimum(part.time + ahead, last)
            actions[part.place, ahead] = said[part.cell, time + part.depth - 1, part.row]
            valid[part.place, ahead] = led
            led &= np.isin(columns["source"][part.cell, time, part.row], _TAUGHT)


def _add_outcome(part: Part, target: Target) -> None:
    columns = part.view.columns
    at = (part.cell, part.time + left_in_chunk(part) - 1, part.row)
    slot = columns["final_slot"][at]
    ended = (columns["terminated"][at] | columns["truncated"][at]) & (slot >= 0)
    for name in SUCCESS:
        flags = columns[name]
        found = flags[part.cell, np.clip(slot, 0, flags.shape[1] - 1)]
        known = target.column(name.replace("final", "episode"), (), np.dtype(np.int8))
        known[part.place] = np.where(ended, found, -1)
