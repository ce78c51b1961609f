"""What follows a drawn decision in its episode, over the chunks that followed on its row.

A stretch goes on while the episode does. A decision that is no outcome (interrupted, or truncated without its
final observation) is not taken in. Into the next chunk it goes only if that begins where this one ended: with
the same episode at the next step; so what was lost on the way is never jumped over.

Symbols: S samples, s those of a part, D chunks one after the other.
"""

from __future__ import annotations

import numpy as np

from rollbus_learner.drawn import Chunks, Part

_ENDS = ("terminated", "truncated", "interrupted")


def left_in_chunk(part: Part) -> np.ndarray:
    """int [s]: decisions of the stretch within its own chunk, 1 at least."""
    columns, num = part.view.columns, part.view.layout.num_decisions
    rows = {name: columns[name][part.cell, :num, part.row] for name in (*_ENDS, "final_slot")}
    ended = rows["terminated"] | rows["truncated"] | rows["interrupted"]
    stops = _no_outcome(rows) | (np.arange(num) >= columns["lengths"][part.cell, part.row][:, None])
    stops[:, 1:] |= ended[:, :-1]
    stops &= np.arange(num) > part.time[:, None]
    return np.where(stops.any(1), stops.argmax(1), num) - part.time


def _no_outcome(rows: dict[str, np.ndarray]) -> np.ndarray:
    lost = rows["truncated"] & ~rows["terminated"] & (rows["final_slot"] < 0)
    return rows["interrupted"] | lost


class Stretches:
    """The stretch of each drawn decision, as far as ``reach`` decisions and the chunks of the draw go."""

    def __init__(self, chunks: Chunks, drawn: list[Part], reach: int) -> None:
        num = len(chunks.chunk)
        self._chunks = chunks
        #: [D, S]: chunk, time of the stretch's first decision in it, decisions up to its end.
        self._chunk, self._first, self._ends = [chunks.chunk], [chunks.time], [np.zeros(num, np.int64)]
        self._goes_on = np.zeros(num, bool)
        self._episode, self._step = np.zeros(num, np.int64), np.zeros(num, np.int64)
        for part in drawn:
            self._take(part)
        while (going := np.flatnonzero(self._goes_on & (self._ends[-1] < reach))).size:
            self._cross(going)
        #: int [S]: decisions of each, at most ``reach``; 0 where the slab is gone.
        self.num = np.minimum(self._ends[-1], reach)
        self._layers = np.stack(self._chunk), np.stack(self._first), np.stack(self._ends)

    def _take(self, part: Part) -> None:
        """Count the decisions of ``part`` on, and note where they end."""
        columns, left = part.view.columns, left_in_chunk(part)
        self._ends[-1][part.place] += left
        last = part.time + left - 1
        at = (part.cell, last, part.row)
        ended = np.any([columns[name][at] for name in _ENDS], 0)
        self._goes_on[part.place] = ~ended & (last + 1 == columns["lengths"][part.cell, part.row])
        self._episode[part.place] = columns["episode"][at]
        self._step[part.place] = columns["last_step"][part.cell, part.row]

    def _cross(self, going: np.ndarray) -> None:
        """One chunk on, for the samples ``going``."""
        following = self._chunks.following[self._chunk[-1][going]]
        self._goes_on[:] = False
        going, following = going[following >= 0], following[following >= 0]
        chunk = self._chunk[-1].copy()
        chunk[going] = following
        self._chunk.append(chunk)
        self._first.append(np.zeros_like(self._first[0]))
        self._ends.append(self._ends[-1].copy())
        for part in self._chunks.parts(going, following, np.zeros_like(following)):
            inside = part.row < part.view.layout.num_rows
            rests = inside.copy()
            rests[inside] = part.view.columns["lengths"][part.cell[inside], part.row[inside]] == 0
            # The row had no decision in this chunk: what follows may stand in the next.
            self._goes_on[part.place[rests]] = True
            self._take(self._that_follow(_select(part, inside & ~rests)))

    def _that_follow(self, part: Part) -> Part:
        """Those of ``part`` that begin where their stretch has ended."""
        columns, at = part.view.columns, (part.cell, part.time, part.row)
        same = columns["episode"][at] == self._episode[part.place]
        same &= columns["step"][at] == self._step[part.place]
        same &= self._step[part.place] > 0
        same &= ~_no_outcome({name: columns[name][at] for name in (*_ENDS, "final_slot")})
        return _select(part, same)

    def parts(self, place: np.ndarray, ahead: np.ndarray) -> list[Part]:
        """The decisions ``ahead`` [s] after those drawn at ``place`` [s], less than ``num`` each."""
        chunk, first, ends = self._layers
        layer = (ends[:, place] <= ahead).sum(0)
        before = np.where(layer > 0, ends[layer - 1, place], 0)
        time = first[layer, place] + ahead - before
        return self._chunks.parts(place, chunk[layer, place], time)

    def readable(self) -> np.ndarray:
        """Bool [S]: all chunks of the stretch are still there; ask after reading."""
        return self._chunks.readable()[self._layers[0]].all(0)


def _select(part: Part, keep: np.ndarray) -> Part:
    return Part(part.view, part.place[keep], part.cell[keep], part.time[keep], part.row[keep])
