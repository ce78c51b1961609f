"""Instructions as observations: text to bytes and back. Importing this needs no torch.

An environment states ``ArraySpec("uint8", (length,), 0, 255, layout="tokens")`` and gives `encode`'s bytes,
one row each. The byte 0 is padding.
"""

from __future__ import annotations

import numpy as np

from rollbus_wire.errors import SpecError


def encode(text: str, length: int) -> np.ndarray:
    """uint8 [length]: the UTF-8 bytes of ``text``, zeros behind. Raises `SpecError` if it is too long."""
    data = text.encode()
    if len(data) > length:
        raise SpecError(
            f"instruction of {len(data)} bytes, {length} fit: {text!r}; shorten it or raise the length"
        )
    if 0 in data:
        raise SpecError(f"instruction {text!r} holds the byte 0, which is padding")
    return np.frombuffer(data.ljust(length, b"\0"), np.uint8).copy()


def decode(tokens: np.ndarray) -> str:
    """The inverse of `encode`."""
    return bytes(np.asarray(tokens, np.uint8)).rstrip(b"\0").decode()
