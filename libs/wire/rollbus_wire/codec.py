"""One message as frames: a msgpack header, then one raw frame per large array.

The header is a map (docs/protocol.md, "Envelope"). An array stands in the header as a msgpack
extension of type 1 that names its frame, dtype and shape; its bytes are that frame. An array of
at most `INLINE_BYTES` names frame 0 and its bytes follow in the extension itself, because a frame
costs more than the copy (docs/decisions/0002). Only the dtypes of `DTYPES` exist on the wire: no
objects, strings, dates or structures.
"""

from __future__ import annotations

import struct
import threading
from functools import lru_cache
from typing import Any, List, Sequence, Tuple

import msgpack
import numpy as np

from .errors import LimitExceeded, WireError
from .header import bound_elements, check_values
from .limits import (
    MAX_ARRAY_BYTES,
    MAX_CONTAINER_LENGTH,
    MAX_DIMENSIONS,
    MAX_ELEMENTS,
    MAX_FRAMES,
    MAX_HEADER_BYTES,
)

ARRAY_EXTENSION = 1
#: Arrays up to this size ride in the header.
INLINE_BYTES = 16384

#: The code of a dtype on the wire is its place in this list; append only.
DTYPES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split()
_CODES = {np.dtype(name): code for code, name in enumerate(DTYPES)}
_TYPES = [np.dtype(name) for name in DTYPES]
_PREFIX = struct.Struct("<HBB")
_DIMENSIONS = [struct.Struct("<%dQ" % n) for n in range(MAX_DIMENSIONS + 1)]


def pack(header: Any) -> List[Any]:
    """Frames of ``header``: ``[msgpack bytes, array, array, ...]``; arrays are not copied."""
    return _PACKING.frames_of(header)


class _Packing(threading.local):
    """One packer per thread: making one costs as much as packing a small message."""

    def __init__(self) -> None:
        self._pack = msgpack.Packer(default=self._default, use_bin_type=True).pack
        #: Of the header that is being packed.
        self._frames: List[Any] = []

    def frames_of(self, header: Any) -> List[Any]:
        self._frames = frames = [b""]
        try:
            frames[0] = self._pack(header)
        finally:
            self._frames = []
        return frames

    def _default(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return _pack_array(value, self._frames)
        if isinstance(value, np.generic):
            return value.item()
        raise WireError("a %s cannot travel: %r" % (type(value).__name__, value))


_PACKING = _Packing()
#: An `ExtType` from (code, bytes) without its checks.
_extension = msgpack.ExtType._make


def _pack_array(array: np.ndarray, frames: List[Any]) -> msgpack.ExtType:
    if array.nbytes <= INLINE_BYTES:
        return _extension((ARRAY_EXTENSION, _describe(0, array.dtype, array.shape) + array.tobytes()))
    frames.append(array if array.flags.c_contiguous else np.ascontiguousarray(array))
    return _extension((ARRAY_EXTENSION, _describe(len(frames) - 1, array.dtype, array.shape)))


@lru_cache(maxsize=4096)
def _describe(frame: int, dtype: np.dtype, shape: Tuple[int, ...]) -> bytes:
    code = _CODES.get(dtype)
    if code is None:
        raise WireError("dtype %s is not on the wire; use one of: %s" % (dtype, ", ".join(DTYPES)))
    if len(shape) > MAX_DIMENSIONS:
        raise LimitExceeded("%d dimensions; at most %d" % (len(shape), MAX_DIMENSIONS))
    return _PREFIX.pack(frame, code, len(shape)) + _DIMENSIONS[len(shape)].pack(*shape)


def unpack(frames: Sequence[Any], max_elements: int = MAX_ELEMENTS) -> Any:
    """The header of ``frames`` with its arrays, which view the frames and are read-only.

    Raises `WireError`, and `LimitExceeded` for what is beyond `limits` or has more than ``max_elements``.
    """
    if not frames or len(frames) > MAX_FRAMES:
        raise LimitExceeded("%d frames; 1 to %d" % (len(frames), MAX_FRAMES))
    header = frames[0]
    if len(header) > MAX_HEADER_BYTES:
        raise LimitExceeded("header of %d bytes; at most %d" % (len(header), MAX_HEADER_BYTES))
    bound_elements(header, max_elements)
    used = set()

    def extension(code: int, data: bytes) -> np.ndarray:
        if code != ARRAY_EXTENSION or len(data) < _PREFIX.size:
            raise WireError("unknown extension type %d of %d bytes" % (code, len(data)))
        start = _PREFIX.size + 8 * data[3]
        index, dtype, shape, num_bytes = _described(data[:start])
        if index >= len(frames) or (index and len(data) != start):
            raise WireError("array names frame %d of %d, in %d bytes" % (index, len(frames), len(data)))
        came = len(frames[index]) if index else len(data) - start
        if num_bytes != came:
            raise WireError("array of %s %s needs %d bytes, %d came" % (dtype, list(shape), num_bytes, came))
        if not index:
            return np.ndarray(shape, dtype, data, start)
        used.add(index)
        return np.frombuffer(frames[index], dtype).reshape(shape)

    try:
        value = msgpack.unpackb(
            header,
            ext_hook=extension,
            raw=False,
            max_array_len=MAX_CONTAINER_LENGTH,
            max_map_len=MAX_CONTAINER_LENGTH,
        )
    except WireError:
        raise
    except Exception as error:  # noqa: BLE001 - msgpack raises ValueError, StackError, UnicodeDecodeError, ...
        raise WireError("header is not readable msgpack: %s" % error) from None
    check_values(value)
    if len(used) != len(frames) - 1:
        raise WireError("%d array frames came, %d are named" % (len(frames) - 1, len(used)))
    return value


@lru_cache(maxsize=4096)
def _described(head: bytes) -> Tuple[int, np.dtype, Tuple[int, ...], int]:
    """(frame, dtype, shape, bytes) of an array's description, checked by itself."""
    index, dtype_code, ndim = _PREFIX.unpack_from(head)
    if dtype_code >= len(_TYPES):
        raise WireError("unknown dtype code %d" % dtype_code)
    if ndim > MAX_DIMENSIONS or len(head) < _PREFIX.size + 8 * ndim:
        raise WireError("array header of %d bytes for %d dimensions" % (len(head), ndim))
    shape = _DIMENSIONS[ndim].unpack_from(head, _PREFIX.size)
    dtype = _TYPES[dtype_code]
    num_bytes = dtype.itemsize
    for size in shape:
        num_bytes *= size
    if num_bytes > MAX_ARRAY_BYTES or max(shape, default=0) > MAX_ARRAY_BYTES:
        raise LimitExceeded("array of %s, %d bytes; at most %d" % (list(shape), num_bytes, MAX_ARRAY_BYTES))
    return index, dtype, shape, num_bytes
