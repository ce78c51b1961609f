"""Digests of weight images: which exist, and which is the fastest that this interpreter has.

They find damage and mixtures, not forgery. xxh3 runs at the speed of memory; CRC-32 needs no package.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

import numpy as np

from rollbus_wire.errors import MissingPackage

try:
    import xxhash
except ImportError:  # an optional package: CRC-32 does the same at a seventh of the speed
    xxhash = None  # type: ignore[assignment]

#: The digest of an image is that of its blocks' digests, so that threads can share the work.
BLOCK_BYTES = 1 << 24

_FUNCTIONS: dict[str, Callable[[Any], int]] = {"crc32": zlib.crc32}
if xxhash is not None:
    _FUNCTIONS["xxh3"] = xxhash.xxh3_64_intdigest

#: The name of the digest that this side makes.
BEST = "xxh3" if "xxh3" in _FUNCTIONS else "crc32"


def digest(data: Any, kind: str = BEST) -> int:
    """Digest ``kind`` of a contiguous buffer, in one piece. Raises `MissingPackage`."""
    return _function(kind)(data)


def image_digest(data: Any, kind: str = BEST, pool: Executor | None = None) -> int:
    """Digest ``kind`` of an image: of the only block, or of all blocks' 8-byte little-endian digests.

    ``pool`` shares the blocks among its threads; the result is the same. Raises `MissingPackage`.
    """
    function, view = _function(kind), memoryview(data).cast("B")
    blocks = [view[start : start + BLOCK_BYTES] for start in range(0, len(view), BLOCK_BYTES)]
    if len(blocks) <= 1:
        return function(view)
    found = list(pool.map(function, blocks) if pool is not None else map(function, blocks))
    return function(np.array(found, "<u8").tobytes())


def _function(kind: str) -> Callable[[Any], int]:
    if kind not in _FUNCTIONS:
        raise MissingPackage(
            f"weights carry the digest {kind!r}, this interpreter has {', '.join(sorted(_FUNCTIONS))}; "
            "install xxhash (it comes with rollbus), or one version of rollbus on both sides"
        )
    return _FUNCTIONS[kind]
