"""Peer plane: environment or robot <-> hub. docs/protocol.md is the reference."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional

from .base import Array, Arrays, Message


@dataclass
class Hello(Message):
    """A peer dials in: how many rows it offers and what they are."""

    protocol: List[int]
    spec: Dict[str, Any]
    num_rows: int
    name: str = ""
    fields_hash: str = ""
    #: int32 [num_rows], the index of the task that each row runs, where the spec has tasks.
    row_tasks: Optional[Array] = None


@dataclass
class Welcome(Message):
    """The hub takes the peer."""

    peer: int
    protocol: List[int]
    fields_hash: str = ""
    #: The hub pings an idle peer this often; a peer that hears nothing for three of these dials
    #: in again.
    heartbeat_s: float = 5.0


@dataclass
class Reset(Message):
    """Start an episode on each of ``rows`` (int32 [R]) from ``seeds`` (int64 [R])."""

    rows: Array
    seeds: Array
    #: One map per row, or empty.
    options: List[Any] = field(default_factory=list)


@dataclass
class Step(Message):
    """One environment step on each of ``rows``; ``actions`` is [R, ...]."""

    rows: Array
    actions: Array
    #: Whether the answer must hold observations.
    observe: bool = True


@dataclass
class Observe(Message):
    """Observations of ``rows`` as they are now."""

    rows: Array


@dataclass
class GetState(Message):
    """The full simulator state of ``rows``, where the environment can give it."""

    rows: Array


@dataclass
class SetState(Message):
    """Put ``rows`` into states that `GetState` gave."""

    rows: Array
    states: List[bytes]


@dataclass
class Outcome(Message):
    """The answer to `Reset`, `Step`, `Observe`, `GetState` and `SetState`; arrays are [R, ...]."""

    rows: Array
    obs: Optional[Arrays] = None
    reward: Optional[Array] = None
    terminated: Optional[Array] = None
    truncated: Optional[Array] = None
    #: Success after the step, where the spec has it.
    success: Optional[Array] = None
    states: Optional[List[bytes]] = None
    #: Further named columns, only those the hub asked for.
    extras: Optional[Arrays] = None
    #: What the rows whose reward is NaN raised, if they did: the first of them.
    failure: Optional[str] = None
    traceback: Optional[str] = None


@dataclass
class Goodbye(Message):
    """The sender ends the session."""

    reason: str = ""
    #: Another hub will follow at this address: the peer dials in anew and waits for it.
    again: bool = False
