"""Compression of chunks, used only where the link is slower than what it saves.

Bytes of equal significance are brought together first: exponents of weights are alike, mantissas are
noise. zlib is always there; zstd (package `zstandard`) is ten times as fast, so that it pays on faster links.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from rollbus_wire.errors import WireError, short

try:
    import zstandard
except ImportError:  # an optional package: zlib stands in
    zstandard = None  # type: ignore[assignment]

_PACK: dict[str, Callable[[bytes], bytes]] = {"zlib": lambda data: zlib.compress(data, 1)}
_UNPACK: dict[str, Callable[[bytes, int], bytes]] = {"zlib": lambda data, size: _inflate(data, size)}
if zstandard is not None:
    _PACK["zstd"] = lambda data: zstandard.ZstdCompressor(level=1).compress(data)
    _UNPACK["zstd"] = lambda data, size: _unpack_zstd(data, size)

_ERRORS: tuple[type[Exception], ...] = (
    (zlib.error,) if zstandard is None else (zlib.error, zstandard.ZstdError)
)

#: Memory that unpacking one chunk may take.
MAX_WINDOW = 8 << 20
#: The largest item of a tensor.
MAX_WIDTH = 16
#: What this side can unpack, the fastest first.
PACKINGS = tuple(reversed(_PACK))


class Gain(NamedTuple):
    """What a packing did to a sample: raw bytes per packed byte, and raw bytes per second."""

    ratio: float
    bytes_per_s: float

    def pays(self, link_bytes_per_s: float) -> bool:
        """Whether packing, then sending less, is faster than sending all; an unknown rate (0) says no."""
        if not link_bytes_per_s or self.ratio <= 1.0:
            return False
        saved_s = (1.0 - 1.0 / self.ratio) / link_bytes_per_s
        return 1.0 / self.bytes_per_s < saved_s


def measure(sample: np.ndarray, packing: str, width: int) -> Gain:
    """The gain of ``packing`` on ``sample`` (uint8)."""
    began = time.perf_counter()
    packed = pack(sample, packing, width)
    return Gain(sample.size / max(1, packed.size), sample.size / max(time.perf_counter() - began, 1e-9))


def choose(accepted: Sequence[str]) -> str:
    """The fastest packing that both sides have; "" if none."""
    return next((name for name in PACKINGS if name in accepted), "")


def pack(data: np.ndarray, packing: str, width: int) -> np.ndarray:
    """``data`` (uint8) packed; ``width`` is the item size by which bytes are sorted."""
    whole = data.size // width * width
    planes = data[:whole].reshape(-1, width).T.tobytes() + data[whole:].tobytes()
    return np.frombuffer(_PACK[packing](planes), np.uint8)


def unpack(data: np.ndarray, packing: str, width: int, num_bytes: int) -> np.ndarray:
    """The inverse of `pack`, which must give ``num_bytes``. Raises `WireError`."""
    if packing not in _UNPACK or not 1 <= width <= MAX_WIDTH:
        raise WireError(f"a weight chunk is packed as {short(packing)} {width}; known: {', '.join(PACKINGS)}")
    try:
        planes = np.frombuffer(_UNPACK[packing](data.tobytes(), num_bytes), np.uint8)
    except _ERRORS as error:
        raise WireError(f"a weight chunk cannot be unpacked ({packing}): {error}") from None
    if planes.size != num_bytes:
        raise WireError(f"a weight chunk has {planes.size} bytes unpacked, {num_bytes} are due")
    whole = num_bytes // width * width
    return np.concatenate([planes[:whole].reshape(width, -1).T.reshape(-1), planes[whole:]])


def _unpack_zstd(data: bytes, num_bytes: int) -> bytes:
    # A frame that states its size is unpacked to that, whatever ``max_output_size`` says.
    stated = zstandard.get_frame_parameters(data)
    if (
        stated.content_size not in (num_bytes, zstandard.CONTENTSIZE_UNKNOWN)
        or stated.window_size > MAX_WINDOW
    ):
        raise WireError(f"a weight chunk states {stated.content_size} bytes unpacked, {num_bytes} are due")
    return zstandard.ZstdDecompressor().decompress(data, max_output_size=num_bytes)


def _inflate(data: bytes, num_bytes: int) -> bytes:
    # Bounded: a chunk cannot make its reader allocate more than a chunk.
    return zlib.decompressobj().decompress(data, num_bytes + 1)
