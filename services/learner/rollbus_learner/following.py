"""What each decision of a chunk led to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from rollbus_learner.algorithm import Batch


def after(found: Tensor, finals: Callable[[], Tensor], batch: Batch) -> Tensor:
    """What is said of the observation after each decision, [T, N, ...].

    ``found`` [T+1, N, ...] is said of all observations of the chunk, ``finals()`` [M, ...] of those with
    which episodes ended; the latter is asked only if there are any.
    """
    following, slot = found[1:].clone(), batch["final_slot"].long()
    ended = slot >= 0
    if bool(ended.any()):
        following[ended] = finals()[slot[ended]]
    return following
