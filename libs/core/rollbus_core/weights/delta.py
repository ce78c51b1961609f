"""The elements that changed between two images of one layout, as bytes.

Elements are compared and sent as bits: what is applied equals the new image to the last bit, NaN and -0
included. A delta means nothing without its exact base; who applies one checks digests before and after.

A record per changed tensor: which (uint32), form (uint32), number of elements (uint64), then
form 1, sparse: per block of 65,536 elements how many changed (uint32), their places in it (uint16), their
values; form 2, dense: all values.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from fnmatch import fnmatchcase

import numpy as np

from rollbus_core.weights.copying import shared_pool
from rollbus_core.weights.image import Entry, Layout
from rollbus_wire.errors import StaleRead

BLOCK = 1 << 16
SPARSE, DENSE = 1, 2
_RECORD = struct.Struct("<IIQ")
#: Elements that are compared in one go: 64 blocks, so that the temporary arrays stay in the cache.
_STEP = BLOCK << 6
#: Where one element in so many says that most have changed, nobody lists places; small tensors are exempt.
_SAMPLE, _SLACK = 101, 1 << 16


def diff(
    layout: Layout, old: np.ndarray, new: np.ndarray, names: Sequence[str] = (), max_bytes: int | None = None
) -> np.ndarray | None:
    """What makes ``new`` of ``old`` (uint8 images of ``layout``), uint8; None if that is above ``max_bytes``.

    ``names``: shell patterns of the tensors that may differ; the others are not looked at. Empty: all.
    """
    parts: list[np.ndarray] = []
    num_bytes = 0
    for index, entry in enumerate(layout.entries):
        if names and not any(fnmatchcase(entry.name, pattern) for pattern in names):
            continue
        record = _record(index, _elements(layout, entry, old), _elements(layout, entry, new))
        parts += record
        num_bytes += sum(part.nbytes for part in record)
        if max_bytes is not None and num_bytes > max_bytes:
            return None
    return np.concatenate([part.view(np.uint8) for part in parts]) if parts else np.empty(0, np.uint8)


def apply(layout: Layout, image: np.ndarray, delta: np.ndarray) -> None:
    """Change ``image`` (uint8) in place by ``delta``; raises `StaleRead` if that is not a whole delta of
    ``layout``. What ``image`` holds then is undefined."""
    place = 0
    while place < delta.size:
        if delta.size - place < _RECORD.size:
            raise StaleRead(f"weight delta ends within a record, at byte {delta.size}")
        index, form, count = _RECORD.unpack(delta[place : place + _RECORD.size].tobytes())
        place += _RECORD.size
        if index >= len(layout.entries):
            raise StaleRead(f"weight delta names tensor {index} of {len(layout.entries)}")
        target = _elements(layout, layout.entries[index], image)
        place = _Cursor(delta, place, layout.entries[index].name).apply(target, form, count)


class _Cursor:
    """Reads the body of one record."""

    def __init__(self, delta: np.ndarray, place: int, name: str) -> None:
        self._delta, self._place, self._name = delta, place, name

    def apply(self, target: np.ndarray, form: int, count: int) -> int:
        """Write the record's elements into ``target``; where the next record begins."""
        if form == DENSE and count == target.size:
            target[:] = self._take(target.dtype, count)
        elif form == SPARSE and count <= target.size:
            counts = self._take(np.dtype("<u4"), -(-target.size // BLOCK))
            if int(counts.sum(dtype=np.uint64)) != count:
                raise self._broken(f"its blocks hold {counts.sum()} elements, not {count}")
            places = np.repeat(np.arange(counts.size, dtype=np.int64) * BLOCK, counts)
            places += self._take(np.dtype("<u2"), count)
            if count and int(places.max()) >= target.size:
                raise self._broken(f"element {places.max()} of {target.size}")
            target[places] = self._take(target.dtype, count)
        else:
            raise self._broken(f"form {form} with {count} of {target.size} elements")
        return self._place

    def _take(self, dtype: np.dtype, count: int) -> np.ndarray:
        stop = self._place + count * dtype.itemsize
        if stop > self._delta.size:
            raise self._broken(f"it ends at byte {self._delta.size}, {stop} are needed")
        # A copy: records are not aligned.
        found = np.frombuffer(self._delta[self._place : stop].tobytes(), dtype)
        self._place = stop
        return found

    def _broken(self, what: str) -> StaleRead:
        return StaleRead(f"weight delta of {self._name!r} cannot be applied: {what}")


def _elements(layout: Layout, entry: Entry, image: np.ndarray) -> np.ndarray:
    """The tensor's elements as unsigned integers, flat, viewing ``image``."""
    start = len(layout.header)
    return image[start + entry.start : start + entry.stop].view(f"<u{entry.dtype.itemsize}")


def _record(index: int, old: np.ndarray, new: np.ndarray) -> list[np.ndarray]:
    if (
        np.count_nonzero(old[::_SAMPLE] != new[::_SAMPLE]) * _SAMPLE * (2 + new.itemsize)
        > new.nbytes + _SLACK
    ):
        return [_head(index, DENSE, new.size), new]
    places = _changed(old, new)
    if not places.size:
        return []
    if places.size * (2 + new.itemsize) >= new.nbytes:
        return [_head(index, DENSE, new.size), new]
    counts = np.bincount(places >> 16, minlength=-(-new.size // BLOCK)).astype("<u4")
    return [_head(index, SPARSE, places.size), counts, (places & 0xFFFF).astype("<u2"), new[places]]


def _head(index: int, form: int, count: int) -> np.ndarray:
    return np.frombuffer(_RECORD.pack(index, form, count), np.uint8)


def _changed(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Places where ``old`` and ``new`` differ, ascending, int64."""
    starts = range(0, new.size, _STEP)

    def compare(start: int) -> np.ndarray:
        stop = start + _STEP
        return np.flatnonzero(old[start:stop] != new[start:stop]) + start

    threads = shared_pool(new.nbytes)
    found = list(threads.map(compare, starts) if threads is not None else map(compare, starts))
    return np.concatenate(found) if found else np.empty(0, np.int64)
