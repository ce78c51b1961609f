"""Data plane: hub <-> actor. docs/protocol.md is the reference."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Dict, FrozenSet, List, Optional

import numpy as np

from rollbus_wire.errors import LimitExceeded
from rollbus_wire.limits import MAX_ROWS

from .base import Array, Arrays, Message


@dataclass
class Attach(Message):
    """An actor asks for a slice. ``assignment`` is (broker boot, number), or (0, 0) without one."""

    slice: str
    assignment: List[int]
    actor: str = ""
    #: A nonce of the actor (`rollbus_wire.shm`): a hub that can read it back shares its memory.
    memory: str = ""


@dataclass
class Attached(Message):
    """The hub grants the slice under a new fence; older fences are dead from here on."""

    slice: str
    fence: int
    num_rows: int
    spec: Dict[str, Any]
    #: Whether steps may be recorded; evaluation and deployment act without tickets.
    record: bool = True
    #: Opaque recurrent state per row, uint8 [N, B], or None at the first attachment.
    carry: Optional[Array] = None
    #: The frames before the current one, [K-1, N, ...] per key, for frame stacks.
    history: Optional[Arrays] = None
    #: The slab of this fence's observations and its size; 0: they travel in the ticks.
    slab: int = 0
    slab_bytes: int = 0


@dataclass
class Tick(Message):
    """Rows of a slice that wait for a decision, with the outcome of their last one.

    R rows are ready, M of them just ended an episode. In the first tick under a fence no row has
    an outcome: ``num_steps`` is 0 for it.
    """

    slice: str
    fence: int
    tick: int
    #: int32 [R], places in the slice.
    rows: Array
    #: Observation to act on, [R, ...] per key: of the new episode where one ended.
    obs: Arrays
    #: int64 [R] episode ids and int32 [R] steps already taken in the episode.
    episode: Array
    step: Array
    #: Environment steps the last decision executed, int32 [R]; 0: no outcome under this fence.
    num_steps: Array
    #: float32 [R, C], reward of each executed step, zero beyond ``num_steps``.
    reward: Array
    terminated: Array
    truncated: Array
    #: The episode was cut because infrastructure was lost: neither outcome nor bootstrap.
    interrupted: Array
    #: Places in ``rows`` whose episode ended, int32 [M], and what ended there.
    final: Array
    final_obs: Arrays
    final_return: Array
    final_length: Array
    #: int8 [M]: 1 success, 0 failure, -1 where the environment has no success signal.
    final_success_once: Array
    final_success_at_end: Array
    #: The seed each row's running episode began with, int64 [R].
    seed: Optional[Array] = None
    extras: Optional[Arrays] = None
    #: Every row executed one step and nothing ended: the fields of `plain_fields` are not sent.
    plain: bool = False
    #: Byte of the fence's slab where ``obs`` lies instead; -1: it is here.
    place: int = -1

    def implied(self) -> FrozenSet[str]:
        return _PLAIN if self.plain else _SENT

    @classmethod
    def filled(cls, known: Dict[str, Any]) -> Dict[str, Any]:
        if not known.get("plain") or "rows" not in known or "obs" not in known:
            return {}
        if known["rows"].size > MAX_ROWS:
            raise LimitExceeded("a tick of %d rows; at most %d" % (known["rows"].size, MAX_ROWS))
        final_obs = {key: array[:0] for key, array in known["obs"].items() if isinstance(array, np.ndarray)}
        return dict(plain_fields(known["rows"].size), final_obs=final_obs)


@lru_cache(maxsize=64)
def plain_fields(num_rows: int) -> Dict[str, Array]:
    """What a plain tick of R rows says, without ``final_obs``; read-only arrays."""
    flag = np.zeros(num_rows, np.bool_)
    fields = {
        "num_steps": np.ones(num_rows, np.int32),
        "terminated": flag, "truncated": flag, "interrupted": flag,
        "final": np.zeros(0, np.int32), "final_return": np.zeros(0, np.float32),
        "final_length": np.zeros(0, np.int32), "final_success_once": np.zeros(0, np.int8),
        "final_success_at_end": np.zeros(0, np.int8),
    }  # fmt: skip
    for array in fields.values():
        array.flags.writeable = False
    return fields


_SENT: FrozenSet[str] = frozenset()
_PLAIN = frozenset(plain_fields(1)) | {"final_obs"}


@dataclass
class Act(Message):
    """The decision for ``rows`` of one tick; applied at most once per (slice, fence, tick, row)."""

    slice: str
    fence: int
    tick: int
    rows: Array
    #: [R, ...] one action per row, or [R, C, ...] an action chunk.
    action: Array
    #: Recurrent state after this decision, uint8 [R, B].
    carry: Optional[Array] = None
    #: Whether ``action`` has the chunk dimension C.
    chunked: bool = False


@dataclass
class Waiting(Message):
    """A holder has heard nothing of its slice for a while; ``tick`` is the last that it saw, 0: none.

    The hub repeats what is outstanding, or says `Detached` if the fence is not the present one.
    """

    slice: str
    fence: int
    tick: int


@dataclass
class Detach(Message):
    """The holder gives a slice up (it was released, or it is leaving)."""

    slice: str
    fence: int


@dataclass
class Detached(Message):
    """Another holder took the slice, or the hub closes it."""

    slice: str
    fence: int
    reason: str = ""
