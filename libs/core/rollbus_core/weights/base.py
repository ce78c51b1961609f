"""Weights between learner and actors: the contract of a slot, and tensors as one image of bytes.

A slot holds the newest version of one policy. The learner publishes, actors read what a `Notice`
names. Ordering comes from notices, never from a flag in shared memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from rollbus_wire.errors import StaleRead
from rollbus_wire.messages import Notice


class WeightSink(Protocol):
    """The learner's end of a slot."""

    #: Publishes that found no free buffer.
    publishes_skipped: int

    def publish(self, version: Sequence[int], image: bytes) -> Notice | None:
        """Make ``version`` (lineage, number) readable; None if no buffer is free: try again."""
        ...


class WeightSource(Protocol):
    """An actor's end of a slot."""

    def read(self, notice: Notice) -> bytes:
        """A copy of the image that ``notice`` names; raises `StaleRead` if it is not there whole."""
        ...


def to_image(tensors: Mapping[str, np.ndarray]) -> bytes:
    """``tensors`` as one safetensors file in memory."""
    from safetensors.numpy import save

    return save({name: np.asarray(value, order="C") for name, value in tensors.items()})


def from_image(image: bytes) -> dict[str, np.ndarray]:
    """The inverse of `to_image`; raises `StaleRead` if ``image`` is not a safetensors file."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        return load(image)
    except SafetensorError as error:
        raise StaleRead(f"weight image of {len(image)} bytes is not readable: {error}") from None
