"""Frames of any bytes into the codec: a `WireError`, or a value that packs again."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rollbus_wire import codec
from rollbus_wire.errors import WireError
from rollbus_wire.limits import MAX_ELEMENTS_ASKED


def fuzz(data: bytes) -> None:
    frames = _split(data)
    try:
        value = codec.unpack(frames, MAX_ELEMENTS_ASKED)
    except WireError:
        return
    codec.unpack([bytes(frame) for frame in codec.pack(value)])


def _split(data: bytes) -> list[bytes]:
    """The first byte says how many frames, each but the last begins with its length."""
    if not data:
        return []
    frames, rest = [], data[1:]
    for _ in range(data[0] % 4):
        length = rest[0] if rest else 0
        frames.append(rest[1 : 1 + length])
        rest = rest[1 + length :]
    return [*frames, rest]


def seeds() -> Iterable[bytes]:
    header = {"v": 1, "k": "act", "b": {"rows": np.arange(3, dtype=np.int32), "x": [1.5, None, "a", b"b"]}}
    yield b"\0" + bytes(codec.pack(header)[0])
    yield b"\0" + b"\x91" * 200 + b"\xc0"
    yield b"\0\xdd\xff\xff\xff\xff"
