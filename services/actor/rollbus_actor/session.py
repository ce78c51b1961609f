"""One slice that this actor holds: its place in the exchange with the hub, and the state of its rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from rollbus_actor.arrivals import TickCheck
from rollbus_actor.chunks import ChunkWriter, Parked
from rollbus_actor.frames import FrameStack
from rollbus_actor.shared import SharedObservations
from rollbus_core.all_rows import AllRows
from rollbus_core.columns import Layout
from rollbus_policies.base import PolicySpec
from rollbus_wire.errors import SpecError
from rollbus_wire.link import Link
from rollbus_wire.messages import Act, Attached, Tick, Ticket
from rollbus_wire.spec import EnvSpec

#: attach: waits for the hub's grant. tick: the rows are being stepped. ticket: rows wait for leave to
#: begin a chunk. ready: rows wait for the next forward pass.
State = Literal["attach", "tick", "ticket", "ready"]


class Session:
    """A slice under one fence."""

    def __init__(self, slice: str, endpoint: str, link: Link, assignment: Sequence[int]) -> None:
        self.slice, self.endpoint, self.link = slice, endpoint, link
        self.assignment = list(assignment)
        self.state: State = "attach"
        self.fence, self.num_rows, self.record = 0, 0, False
        self.spec: EnvSpec | None = None
        #: What is wrong with a tick; used where the hub is another process.
        self.check: TickCheck | None = None
        #: Message id of the `Attach`, and when to repeat it.
        self.attach_id, self.attach_due = 0, 0.0
        #: The tick that waits for its answer.
        self.tick: Tick | None = None
        #: Whether the rows of `tick` are all rows in order.
        self.whole = False
        #: Whether the outcomes in `tick` are booked and its frames taken.
        self.taken = False
        #: The last tick that came, and its answer once it is given: either may have to be sent again.
        self.last_tick = 0
        self.last_act: Act | None = None
        #: When to ask the hub for news, and how long after that again.
        self.ask_due, self.ask_wait_s = math.inf, 0.0
        #: Given up at the next tick, or at this time.
        self.release_by: float | None = None
        self.release_reason = ""
        #: Nobody holds it any more.
        self.closed = False
        self.frames: FrameStack | None = None
        #: Recurrent state per row [N, S], after the last decision.
        self.carry: np.ndarray | None = None
        #: Where the hub puts large observations.
        self.shared: SharedObservations | None = None
        # Recording.
        self.layout: Layout | None = None
        #: Environment steps per decision that `layout` has room for.
        self.chunk_length = 0
        self.request = 0
        self.ticket: Ticket | None = None
        self.writer: ChunkWriter | None = None
        self.parked: Parked | None = None
        #: Stacks and recurrent states of this chunk's finals, where their values are recorded.
        self.finals: list[tuple[dict[str, np.ndarray], np.ndarray | None]] = []
        self.waits_since = 0.0
        self._all_rows = AllRows(0)

    @property
    def held(self) -> bool:
        """Whether the hub has granted the slice."""
        return self.state != "attach"

    def attached(
        self, message: Attached, spec: EnvSpec, policy: PolicySpec, frame_stack: int, record: bool
    ) -> None:
        """The hub grants the slice of ``spec``. Raises `SpecError` for a carry of another policy."""
        self.fence, self.num_rows, self.spec = message.fence, message.num_rows, spec
        self.check = TickCheck(spec, message.num_rows)
        self.record = record and message.record
        self.state = "tick"
        self._all_rows = AllRows(self.num_rows)
        if frame_stack > 1:
            self.frames = FrameStack(frame_stack, self.num_rows, message.history)
        if policy.state == "hub":
            self.carry = to_state(message.carry, self.num_rows, policy.state_size)

    def take_tick(self, tick: Tick) -> None:
        """A tick came: its rows wait for a decision."""
        self.tick, self.taken = tick, False
        self.last_tick, self.last_act, self.ask_due = tick.tick, None, math.inf
        self.whole = self._all_rows.are(tick.rows)

    def take_frames(self) -> None:
        """Enter the observations of `tick` where rows remember something."""
        assert self.tick is not None
        self.taken = True
        if self.frames is None and self.carry is None:
            return
        begins = self.tick.step == 0
        if self.frames is not None:
            self.frames.push(self.tick.rows, self.tick.obs, begins)
        if self.carry is not None and begins.any():
            self.carry[self.tick.rows[begins]] = 0.0

    def inputs(self) -> tuple[Mapping[str, np.ndarray], np.ndarray | None]:
        """What the policy gets for `tick`: observations (stacked) and recurrent state."""
        assert self.tick is not None
        rows = self.tick.rows
        obs = self.tick.obs if self.frames is None else self.frames.stacks(rows)
        return obs, None if self.carry is None else self.carry[rows]

    def final_inputs(self, taken: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
        """The same for the final observations at places ``taken`` of `tick.final`.

        Call before `take_frames`: the frames before an end are the old episode's.
        """
        assert self.tick is not None
        rows = self.tick.rows[self.tick.final[taken]]
        obs = {key: value[taken] for key, value in self.tick.final_obs.items()}
        if self.frames is not None:
            obs = self.frames.followed_by(rows, obs)
        return obs, None if self.carry is None else self.carry[rows]


def to_state(carry: np.ndarray | None, num_rows: int, state_size: int) -> np.ndarray:
    """Recurrent state float32 [N, S] from a carry uint8 [N, 4 S]; zero where there is none."""
    if carry is None:
        return np.zeros((num_rows, state_size), np.float32)
    if carry.shape != (num_rows, 4 * state_size):
        raise SpecError(
            f"carry of shape {list(carry.shape)} for {num_rows} rows and a state of {state_size} floats: "
            "the slice was driven by another policy; start the run anew"
        )
    return np.ascontiguousarray(carry).view(np.float32).copy()


def to_carry(state: np.ndarray) -> np.ndarray:
    """The inverse of `to_state`: uint8 [R, 4 S], a copy."""
    return np.array(state, np.float32, order="C").view(np.uint8)
