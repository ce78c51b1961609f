"""Writing one chunk into the cell that a ticket grants.

Rows need not tick together: row r's t-th decision in the chunk stands at [t, r]. A decision counts
once its outcome has come under the same fence. Symbols as in `rollbus_core.columns`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollbus_core.audit import chunk_record
from rollbus_core.columns import HEADER_BYTES, Layout, chunk_columns
from rollbus_core.feed import Feed
from rollbus_core.version import Version
from rollbus_core.weights.digests import BEST, digest
from rollbus_policies.base import Act, PolicySpec
from rollbus_wire.errors import ConfigError
from rollbus_wire.messages import Commit, Tick, Ticket
from rollbus_wire.spec import EnvSpec

_BY_STEP = (
    "action reward num_steps terminated truncated interrupted final_slot episode step version source".split()
)
_FINALS = ("final_return", "final_length", "final_success_once", "final_success_at_end")
_NO_PLACES = np.zeros(0, np.intp)


def chunk_layout(
    spec: EnvSpec, policy: PolicySpec, feed: Feed, *, num_rows: int, chunk_length: int, frame_stack: int
) -> Layout:
    """The cell of a chunk of one slice. Raises `ConfigError` if the policy lacks an extra of the feed."""
    missing = [name for name in feed.extras if name not in policy.extras]
    if missing:
        raise ConfigError(
            f"the algorithm records {', '.join(missing)}, which the policy does not return "
            f"(it has: {', '.join(policy.extras) or 'none'})"
        )
    t = feed.num_decisions
    # A chunk is cut for want of finals: never a small one, a large one where episodes are about 4 steps.
    num_finals = min(t * num_rows, max(64, 2 * num_rows, t * num_rows // 4))
    sizes = {"num_decisions": t, "num_rows": num_rows, "num_finals": num_finals}
    columns = chunk_columns(
        {key: (item.dtype, item.shape) for key, item in spec.observation.items()},
        policy.action,
        num_history=frame_stack - 1,
        chunk_length=chunk_length,
        carry_bytes=4 * policy.state_size if policy.state == "hub" else 0,
        extras={name: policy.extras[name] for name in feed.extras},
        **sizes,
    )
    return Layout.build(columns, num_history=frame_stack - 1, **sizes)


@dataclass
class Decision:
    """R decisions of one tick, as they are recorded."""

    rows: np.ndarray
    #: Whether ``rows`` are all rows of the slice in order.
    whole: bool
    obs: Mapping[str, np.ndarray]
    act: Act
    #: `Version.pack` of the version that decided.
    version: int
    #: Index into `rollbus_core.columns.SOURCES`, one for all or [R].
    source: int | np.ndarray
    episode: np.ndarray
    step: np.ndarray
    #: The frames before the newest, [K-1, R, ...] per key; called only where a row's chunk begins.
    history: Any = None
    #: Recurrent state before the decision, float32 [R, S].
    state: np.ndarray | None = None


@dataclass
class Parked:
    """Decisions whose outcome comes after their chunk was closed; they begin the next one."""

    rows: np.ndarray
    columns: dict[str, np.ndarray]
    #: K frames per row, [P, K, ...].
    frames: dict[str, np.ndarray]
    #: uint8 [P, B] or None.
    carry: np.ndarray | None

    def select(self, keep: np.ndarray) -> Parked:
        """Those where ``keep``."""
        carry = None if self.carry is None else self.carry[keep]
        return Parked(
            self.rows[keep],
            {name: value[keep] for name, value in self.columns.items()},
            {key: value[keep] for key, value in self.frames.items()},
            carry,
        )


class ChunkWriter:
    """One chunk while it grows. The cell is nobody else's until it is committed."""

    def __init__(
        self, layout: Layout, ticket: Ticket, buffer: Any, offset: int, extras: Sequence[str] = ()
    ) -> None:
        """``extras``: the columns that a decision brings besides the standard ones."""
        self.layout, self.ticket = layout, ticket
        self.limit = max(1, min(layout.num_decisions, ticket.num_decisions))
        self.num_finals = 0
        #: Something came that does not fit the decisions made: the chunk ends here.
        self.broken = False
        self._cell = memoryview(buffer).cast("B")[offset : offset + layout.cell_bytes]
        views = self._views = layout.views(buffer, offset)
        self._h = layout.num_history
        self._obs = {name[4:]: view for name, view in views.items() if name.startswith("obs/")}
        self._final_obs = {n[10:]: view for n, view in views.items() if n.startswith("final_obs/")}
        self._extras = tuple(extras)
        self._by_step = {name: views[name] for name in (*_BY_STEP, *extras)}
        for name, view in views.items():
            if "/" not in name:
                view[...] = -1 if name == "final_slot" else 0
        # While all rows tick together one index serves for all; `_spread` ends that.
        self._even, self._t, self._waiting = True, 0, False
        self._lengths = np.zeros(layout.num_rows, np.int64)
        self._pending = np.zeros(layout.num_rows, bool)
        self._carry_of_pending: np.ndarray | None = None

    # --- state -------------------------------------------------------------------------------

    @property
    def lengths(self) -> np.ndarray:
        """Decisions per row that have their outcome, int64 [N]."""
        if self._even:
            self._lengths[:] = self._t
        return self._lengths

    @property
    def pending(self) -> np.ndarray:
        """Rows whose last decision has no outcome yet, bool [N]."""
        if self._even:
            self._pending[:] = self._waiting
        return self._pending

    def ends_before(self, rows: np.ndarray) -> bool:
        """Whether the chunk has no room for another decision of ``rows``."""
        n, m = self.layout.num_rows, self.layout.num_finals
        if self.broken or (self.num_finals + n > m and m < self.layout.num_decisions * n):
            return True
        if self._even:
            return self._t >= self.limit
        return bool((self._lengths[rows] >= self.limit).any())

    @property
    def whole(self) -> bool:
        """Whether every row has as many decisions as there is room for."""
        return bool((self.lengths >= self.limit).all())

    @property
    def fills_next(self) -> bool:
        """Whether the decisions now pending are the last ones for which there is room."""
        return self._even and self._waiting and self._t + 1 >= self.limit

    # --- decisions and outcomes --------------------------------------------------------------

    def decide(self, d: Decision) -> None:
        """Record decisions; their outcome is to follow."""
        if self._even and d.whole and not self._waiting:
            at: Any = self._t
            frame: Any = self._h + self._t
            first: Any = slice(None) if self._t == 0 else None
            self._waiting = True
        else:
            self._spread()
            places = self._lengths[d.rows]
            at, frame = (places, d.rows), (self._h + places, d.rows)
            begins = np.flatnonzero(places == 0)
            first = begins if begins.size else None
            self._pending[d.rows] = True
        views = self._by_step
        for key, view in self._obs.items():
            view[frame] = d.obs[key]
        views["action"][at] = d.act.action
        views["version"][at] = d.version
        views["episode"][at] = d.episode
        views["step"][at] = d.step
        if np.any(d.source):
            views["source"][at] = d.source
        for name in self._extras:
            views[name][at] = d.act.extras[name]
        self._begin(d, first)

    def _begin(self, d: Decision, first: Any) -> None:
        """What stands before a row's first decision: frames and recurrent state."""
        if first is not None and self._h:
            for key, frames in d.history().items():
                self._obs[key][: self._h, d.rows[first]] = frames[:, first]
        carry = self._views.get("carry")
        if carry is None or d.state is None:
            return
        bytes_of = np.ascontiguousarray(d.state, np.float32).view(np.uint8)
        if first is not None:
            carry[d.rows[first]] = bytes_of[first]
        if self._carry_of_pending is None:
            self._carry_of_pending = np.zeros_like(carry)
        self._carry_of_pending[d.rows] = bytes_of

    def outcome(self, tick: Tick, whole: bool) -> np.ndarray:
        """Record what came of the decisions; returns the places in ``tick.final`` that were taken."""
        together = self._even and whole and self._waiting
        if together and (tick.plain or np.count_nonzero(tick.num_steps) == tick.rows.size):
            have = None  # the usual case: all of them
        else:
            have = (tick.num_steps > 0) | tick.interrupted
        if have is None or (together and have.all()):
            self._book(self._t, tick, slice(None))
            self._t, self._waiting = self._t + 1, False
        else:
            have &= self._awaited(tick, have)
            if not have.any():
                return _NO_PLACES
            self._spread()
            take = np.flatnonzero(have)
            rows = tick.rows[take]
            self._book((self._lengths[rows], rows), tick, take)
            self._lengths[rows] += 1
            self._pending[rows] = False
        return self._finals(tick, have) if tick.final.size else _NO_PLACES

    def _awaited(self, tick: Tick, have: np.ndarray) -> np.ndarray:
        """Rows of ``tick`` with a decision; one whose outcome will never come ends the chunk."""
        waiting = self.pending[tick.rows]
        lost = waiting & ~have
        if lost.any():
            self.broken = True
            self._erase(tick.rows[lost])
        return waiting

    def _book(self, at: Any, tick: Tick, take: Any) -> None:
        views, reward = self._by_step, self._by_step["reward"]
        width = tick.reward.shape[1]
        if width != reward.shape[2]:
            reward = reward[..., :width]
        reward[at] = tick.reward[take]
        if tick.plain:
            # Flags are zero from the start.
            views["num_steps"][at] = 1
            return
        views["num_steps"][at] = tick.num_steps[take]
        views["terminated"][at] = tick.terminated[take]
        views["truncated"][at] = tick.truncated[take]
        views["interrupted"][at] = tick.interrupted[take]

    def _finals(self, tick: Tick, have: np.ndarray | None) -> np.ndarray:
        """``have`` None: all rows."""
        final = tick.final
        taken = np.arange(final.size) if have is None else np.flatnonzero(have[final])
        begin = self.num_finals
        self.num_finals = end = begin + taken.size
        rows = tick.rows[final[taken]]
        time: Any = self._t - 1 if self._even else self._lengths[rows] - 1
        self._views["final_slot"][time, rows] = np.arange(begin, end)
        for key, view in self._final_obs.items():
            view[begin:end] = tick.final_obs[key][taken]
        for name in _FINALS:
            self._views[name][begin:end] = getattr(tick, name)[taken]
        return taken

    # --- the end -----------------------------------------------------------------------------

    def parked(self) -> Parked | None:
        """The decisions that have no outcome yet, copied out; None if there are none."""
        rows = np.flatnonzero(self.pending)
        if not rows.size:
            return None
        places = self.lengths[rows]
        spans = places[:, None] + np.arange(self._h + 1)
        carry = None if self._carry_of_pending is None else self._carry_of_pending[rows]
        return Parked(
            rows,
            {name: view[places, rows] for name, view in self._by_step.items()},
            {key: view[spans, rows[:, None]] for key, view in self._obs.items()},
            carry,
        )

    def adopt(self, parked: Parked) -> int:
        """Begin with decisions of the chunk before; returns how many were too old for this ticket."""
        keep = parked.columns["version"] >= Version.of(self.ticket.min_version).pack()
        parked = parked.select(keep)
        rows = parked.rows
        self._spread()
        for name, value in parked.columns.items():
            self._by_step[name][0, rows] = value
        for key, frames in parked.frames.items():
            self._obs[key][: self._h + 1, rows] = np.moveaxis(frames, 1, 0)
        if parked.carry is not None:
            self._views["carry"][rows] = parked.carry
            self._carry_of_pending = np.zeros_like(self._views["carry"])
            self._carry_of_pending[rows] = parked.carry
        self._pending[rows] = True
        return int((~keep).sum())

    def end(self, rows: np.ndarray, obs: Mapping[str, np.ndarray], step: np.ndarray) -> None:
        """Put the observations after the last decisions, ``obs`` [R, ...] for ``rows``.

        Rows whose last decision has no outcome have theirs already: the one it was taken on. Such
        decisions are erased.
        """
        waiting = np.flatnonzero(self.pending)
        lengths = self.lengths
        last_step, last_value = self._views["last_step"], self._views.get("last_value")
        for key, view in self._obs.items():
            view[self._h + lengths[rows], rows] = obs[key]
        last_step[rows] = step
        if waiting.size:
            at = (lengths[waiting], waiting)
            last_step[waiting] = self._by_step["step"][at]
            if last_value is not None:
                last_value[waiting] = self._by_step["value"][at]
            self._erase(waiting)
        self._clear_tails(lengths)

    def _erase(self, rows: np.ndarray) -> None:
        self._spread()
        at = (self._lengths[rows], rows)
        for name, view in self._by_step.items():
            view[at] = -1 if name == "final_slot" else 0
        self._pending[rows] = False

    def _clear_tails(self, lengths: np.ndarray) -> None:
        """Cells are used again: what is beyond a row's end must not depend on what was there."""
        alike = bool((lengths == lengths[0]).all())
        for view in self._obs.values():
            if alike:
                view[self._h + lengths[0] + 1 :] = 0
                continue
            for row, length in enumerate(lengths):
                view[self._h + length + 1 if length else 0 :, row] = 0
        for view in self._final_obs.values():
            view[self.num_finals :] = 0

    def set_values(self, rows: np.ndarray, last: np.ndarray, final: np.ndarray) -> None:
        """The critic's values of the last observations of ``rows`` and of the finals."""
        self._views["last_value"][rows] = last
        self._views["final_value"][: self.num_finals] = final

    def record(self) -> dict[str, Any]:
        """What audits keep of the chunk."""
        return chunk_record(self._by_step, self.lengths)

    def commit(self, *, with_cell: bool = False) -> Commit:
        """Finish the cell and name it. After this the cell must not be touched."""
        lengths = self.lengths.astype(np.int32)
        self._views["lengths"][:] = lengths
        first = int(np.argmax(lengths > 0))
        order = [int(self._by_step[name][0, first]) for name in ("episode", "step")]
        versions = self._by_step["version"][self._counts()]
        return Commit(
            ticket=self.ticket.ticket, lengths=lengths, num_finals=self.num_finals,
            digest=digest(self._cell[HEADER_BYTES:]), digest_kind=BEST,
            oldest=list(Version.unpack(versions.min())), newest=list(Version.unpack(versions.max())),
            order=order, cell=np.frombuffer(self._cell, np.uint8) if with_cell else None,
        )  # fmt: skip

    def _counts(self) -> np.ndarray:
        return np.arange(self.layout.num_decisions)[:, None] < self.lengths[None, :]

    def _spread(self) -> None:
        if self._even:
            self._lengths[:], self._pending[:] = self._t, self._waiting
            self._even = False
