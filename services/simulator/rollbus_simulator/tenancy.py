"""The actor's side of a slice: who holds it, and what changes when that changes."""

from __future__ import annotations

import numpy as np

from rollbus_simulator.counters import Counters
from rollbus_simulator.frames import ALL, Frames, Rows
from rollbus_simulator.holders import Holder, Tenure, UnknownSlice
from rollbus_simulator.settings import SliceSettings
from rollbus_wire.messages import Attached, Detached, Tick
from rollbus_wire.spec import EnvSpec

#: States of a row; see slices.py.
EMPTY, IDLE, RESETTING, STEPPING, READY, TICKED = range(6)


class Tenancy:
    """What a `Slice` does for its holders."""

    name: str
    num_rows: int
    spec: EnvSpec
    settings: SliceSettings
    tenure: Tenure
    available: bool
    state: np.ndarray
    carry: np.ndarray | None
    _counters: Counters
    _frames: Frames
    _pending: np.ndarray
    _fresh: np.ndarray
    _any_fresh: bool
    _whole_tick: bool
    _places: np.ndarray

    def _tick(self, rows: Rows, places: np.ndarray) -> Tick:
        raise NotImplementedError

    def attach(self, holder: Holder, assignment: list[int]) -> Attached:
        """Give the slice to ``holder`` under a new fence.

        The caller sends what is returned, then calls `advance`. Raises `StaleAssignment` or
        `UnknownSlice`.
        """
        if not self.available:
            raise UnknownSlice(f"slice {self.name} has no peers for all of its rows yet")
        fence = self.tenure.fence
        if (former := self.tenure.take(holder, assignment)) is not None:
            former.send(Detached(slice=self.name, fence=fence, reason="another actor attached"))
        self._counters.straddled += int((self._pending & ~self._fresh).sum())
        self._fresh[:] = self._any_fresh = True
        self._untick()
        return Attached(
            slice=self.name, fence=self.tenure.fence, num_rows=self.num_rows,
            spec=self.spec.to_data(), record=self.settings.record,
            carry=None if self.carry is None else self.carry.copy(),
            history=self._frames.history(),
        )  # fmt: skip

    def detach(self, fence: int) -> None:
        """The holder of ``fence`` gives the slice up."""
        if fence == self.tenure.fence:
            self.tenure.leave()
            self._untick()

    def _untick(self) -> None:
        """The outstanding tick will not be answered."""
        self.state[self.state == TICKED] = READY
        self._whole_tick = False

    def close(self, reason: str) -> None:
        """Take the slice from its holder."""
        if self.tenure.holder is not None:
            self.tenure.holder.send(Detached(self.name, self.tenure.fence, reason))
            self.detach(self.tenure.fence)

    def repeat(self) -> None:
        """Send the outstanding tick again, if there is one: it or its answer was lost."""
        holder, places = self.tenure.holder, np.flatnonzero(self.state == TICKED).astype(np.int32)
        if holder is None or not places.size:
            return
        whole = self._whole_tick and places.size == self.num_rows
        self._counters.repeated_ticks += 1
        holder.send(self._tick(ALL if whole else places, self._places if whole else places))
