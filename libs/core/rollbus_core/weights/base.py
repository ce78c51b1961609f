"""Weights between learner and actors: the contract of a slot, and tensors as one image of bytes.

A slot holds the newest version of one policy. The learner publishes, actors read what a `Notice`
names. Ordering comes from notices, never from a flag in shared memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias

import numpy as np

from rollbus_core.weights.image import Layout, read_layout
from rollbus_wire.messages import Notice

#: What can be published: named tensors, or an image that is made already.
Weights: TypeAlias = Mapping[str, np.ndarray] | bytes


class WeightSink(Protocol):
    """The learner's end of a slot."""

    #: Publishes that found no free buffer.
    publishes_skipped: int

    def publish(self, version: Sequence[int], weights: Weights) -> Notice | None:
        """Make ``version`` (lineage, number) readable; None if no buffer is free: try again."""
        ...

    def close(self) -> None:
        """Nothing more will be published; what is there stays readable on this host."""
        ...


class WeightSource(Protocol):
    """An actor's end of a slot."""

    def local(self, notice: Notice) -> Notice | None:
        """The notice of what can be opened here and now for ``notice``: itself, that of a relay on this
        host, maybe of a newer version, or None if it is still on its way. Never blocks."""
        ...

    def open(self, notice: Notice) -> AbstractContextManager[Mapping[str, np.ndarray]]:
        """The tensors that ``notice`` names, verified, read-only and valid inside the block only.

        Raises `StaleRead` on entry if they are not there whole, and on leaving the block if they changed
        meanwhile: then what was made of them is a mixture. Only a writer that ignores the lock does that.
        """
        ...

    def close(self) -> None:
        """Nothing more will be read."""
        ...


def to_image(tensors: Mapping[str, np.ndarray]) -> bytes:
    """``tensors`` as one safetensors file in memory. Raises `SpecError` for a dtype that it lacks."""
    layout = Layout.of(tensors)
    image = np.empty(layout.num_bytes, np.uint8)
    layout.write(image, tensors)
    return image.tobytes()


def from_image(image: bytes) -> dict[str, np.ndarray]:
    """The inverse of `to_image`; raises `StaleRead` if ``image`` is not a safetensors file."""
    data = np.frombuffer(image, np.uint8) if image else np.empty(0, np.uint8)
    return read_layout(data).views(data)
