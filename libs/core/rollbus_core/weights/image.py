"""Tensors as one safetensors file in memory, written and read in place.

The library `safetensors` reads what is written here; its own writer copies everything twice more.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from rollbus_core.weights.copying import copy_tensors
from rollbus_wire.errors import SpecError, StaleRead, short

#: Data begins at a multiple of this, so that tensors lie as vector units like them.
ALIGNMENT = 64
_LENGTH = struct.Struct("<Q")
#: A header that names more is refused.
MAX_TENSORS, MAX_DIM = 1 << 17, 1 << 48
#: What reading a header of any bytes may raise.
_UNREADABLE = (
    ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, struct.error,
)  # fmt: skip
_NUMPY = {
    "BOOL": "?", "I8": "i1", "U8": "u1", "I16": "<i2", "U16": "<u2", "I32": "<i4", "U32": "<u4",
    "I64": "<i8", "U64": "<u8", "F16": "<f2", "F32": "<f4", "F64": "<f8", "BF16": "<u2",
}  # fmt: skip
_LABELS = {np.dtype(code): label for label, code in _NUMPY.items() if label != "BF16"}


class Entry(NamedTuple):
    """One tensor of an image: where it stands in the data that follow the header, in bytes."""

    name: str
    label: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def dtype(self) -> np.dtype:
        """As numpy sees it; bfloat16, which numpy lacks, is its bits."""
        return np.dtype(_NUMPY[self.label])


class Layout(NamedTuple):
    """The header of an image and what it says. ``num_bytes`` is the whole image's."""

    header: bytes
    entries: list[Entry]
    num_bytes: int

    @classmethod
    def of(cls, tensors: Mapping[str, np.ndarray]) -> Layout:
        """For ``tensors``: large items first, so that each is aligned. Raises `SpecError`."""
        entries, place = [], 0
        for name in sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name)):
            value = tensors[name]
            if value.dtype not in _LABELS:
                raise SpecError(
                    f"weight {name!r} has dtype {value.dtype}, which no image holds; cast it to one of "
                    f"{', '.join(map(str, _LABELS))}"
                )
            entries.append(Entry(name, _LABELS[value.dtype], value.shape, place, place + value.nbytes))
            place += value.nbytes
        return cls.from_entries(entries)

    @classmethod
    def from_entries(cls, entries: list[Entry]) -> Layout:
        """With the header that states ``entries``."""
        table = {
            e.name: {"dtype": e.label, "shape": e.shape, "data_offsets": [e.start, e.stop]} for e in entries
        }
        text = json.dumps(table, separators=(",", ":")).encode()
        text += b" " * (-(_LENGTH.size + len(text)) % ALIGNMENT)
        header = _LENGTH.pack(len(text)) + text
        return cls(header, entries, len(header) + (entries[-1].stop if entries else 0))

    def views(self, image: np.ndarray) -> dict[str, np.ndarray]:
        """The tensors as views of ``image`` (uint8), which may be written if ``image`` may."""
        data = image[len(self.header) : self.num_bytes]
        return {
            e.name: data[e.start : e.stop].view(e.dtype).reshape(e.shape) for e in self.entries
        }  # fmt: skip

    def write(self, image: np.ndarray, tensors: Mapping[str, np.ndarray]) -> None:
        """Fill ``image`` (uint8 [num_bytes]) with the header and ``tensors``."""
        image[: len(self.header)] = np.frombuffer(self.header, np.uint8)
        copy_tensors(self.views(image), tensors)


def read_layout(image: np.ndarray) -> Layout:
    """What ``image`` (uint8) says it holds, checked against its size; raises `StaleRead`."""
    try:
        (length,) = _LENGTH.unpack(image[: _LENGTH.size].tobytes())
        if length > image.size - _LENGTH.size:
            raise ValueError(f"a header of {length} bytes")
        header = image[: _LENGTH.size + length].tobytes()
        table = json.loads(header[_LENGTH.size :])
        if len(table) > MAX_TENSORS:
            raise ValueError(f"{len(table)} tensors; at most {MAX_TENSORS}")
        entries = sorted(_entries(table), key=lambda entry: (entry.start, entry.stop))
        _check_places(entries, image.size - len(header))
    except _UNREADABLE as error:
        raise StaleRead(f"weight image of {image.size} bytes is not readable: {short(error)}") from None
    return Layout(header, entries, image.size)


def _entries(table: Mapping[str, Any]) -> Iterable[Entry]:
    for name, value in table.items():
        if name != "__metadata__":
            start, stop = map(int, value["data_offsets"])
            yield Entry(name, value["dtype"], tuple(map(int, value["shape"])), start, stop)


def _check_places(entries: list[Entry], num_bytes: int) -> None:
    """Raise `ValueError` unless ``entries`` fill ``num_bytes`` without holes, each with its shape's size."""
    place = 0
    for entry in entries:
        size = math.prod(entry.shape) * entry.dtype.itemsize
        good = len(entry.shape) <= 32 and all(0 <= dim <= MAX_DIM for dim in entry.shape)
        if entry.start != place or entry.stop - entry.start != size or not good:
            raise ValueError(f"tensor {entry.name!r} at {entry.start}:{entry.stop}")
        place = entry.stop
    if place != num_bytes:
        raise ValueError(f"tensors of {place} bytes")
