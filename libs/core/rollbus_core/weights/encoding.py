"""How weights travel between hosts: as the learner's image, or with float32 rounded to bfloat16.

An encoded image is a safetensors file as well (label BF16). Its digest is what both ends compare, and
deltas are taken between encoded images, so that rounding happens once and nothing drifts.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rollbus_core.weights.image import Entry, Layout, read_layout
from rollbus_wire.errors import ConfigError

CASTS = ("", "bfloat16")


def encode(tensors: Mapping[str, np.ndarray], cast: str = "") -> tuple[Layout, np.ndarray]:
    """``tensors`` as an encoded image (uint8) of their own memory. Raises `ConfigError`, `SpecError`."""
    layout = _cast_layout(Layout.of(tensors), cast)
    image = np.empty(layout.num_bytes, np.uint8)
    layout.write(image, {e.name: _encoded(tensors[e.name], e) for e in layout.entries})
    return layout, image


def decode(image: np.ndarray) -> dict[str, np.ndarray]:
    """The tensors of an encoded image: views, and new arrays where bfloat16 becomes float32 again."""
    layout = read_layout(image)
    views = layout.views(image)
    return {
        e.name: from_bfloat16(views[e.name]) if e.label == "BF16" else views[e.name]
        for e in layout.entries
    }  # fmt: skip


def to_bfloat16(value: np.ndarray) -> np.ndarray:
    """float32 rounded to the nearest bfloat16, ties to even, as uint16 bits; a NaN stays one."""
    bits = np.ascontiguousarray(value, np.float32).view(np.uint32)
    rounded = ((bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16).astype(np.uint16)
    return np.where(np.isnan(value), (bits >> 16).astype(np.uint16) | 0x40, rounded).reshape(value.shape)


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    """The float32 values of bfloat16 bits (uint16); exact."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _cast_layout(layout: Layout, cast: str) -> Layout:
    if cast not in CASTS:
        raise ConfigError(f"weights cannot be cast to {cast!r}; choose one of {', '.join(map(repr, CASTS))}")
    if not cast:
        return layout
    sizes = [
        e._replace(label="BF16", stop=e.start + (e.stop - e.start) // 2) if e.label == "F32" else e
        for e in layout.entries
    ]
    entries: list[Entry] = []
    place = 0
    for entry in sorted(sizes, key=lambda e: -_item_bytes(e)):
        size = entry.stop - entry.start
        entries.append(entry._replace(start=place, stop=place + size))
        place += size
    return Layout.from_entries(entries)


def _item_bytes(entry: Entry) -> int:
    return entry.dtype.itemsize


def _encoded(value: np.ndarray, entry: Entry) -> np.ndarray:
    return to_bfloat16(value) if entry.label == "BF16" else value
