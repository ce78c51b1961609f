"""Policy plane: whoever has observations <-> a policy service. docs/protocol.md is the reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Optional

from .base import Array, Arrays, Message


@dataclass
class Decide(Message):
    """What to do for these observations? Answered by `Decided`, or a fault ("spec") that names what is wrong.

    Nothing is kept between requests: whoever asks hands ``carry`` of the last answer back.
    """

    #: [R, ...] per key, as the policy's environment gives them; with frame stacks [R, K, ...].
    obs: Arrays
    #: Recurrent state per row, uint8 [R, B]; None: episodes begin.
    carry: Optional[Array] = None
    #: uint64 [R]: sample, with noise that is a function of these; None: the policy's mode.
    seeds: Optional[Array] = None


@dataclass
class Decided(Message):
    """The decision for each row of a `Decide`."""

    #: [R, ...] in the environment's own units and bounds, or [R, k, ...]: k actions one after the other.
    action: Array
    #: (lineage, number) of the weights that decided.
    version: List[int]
    #: Recurrent state after this decision, uint8 [R, B].
    carry: Optional[Array] = None
    #: Whether ``action`` has the dimension k.
    chunked: bool = False
