"""How weights travel between hosts: as the learner's image, or with float32 rounded to bfloat16.

An encoded image is a safetensors file as well (label BF16). Its digest is what both ends compare, and
deltas are taken between encoded images, so that rounding happens once and nothing drifts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from rollbus_core.weights.copying import blocks, shared_pool
from rollbus_core.weights.image import Entry, Layout, read_layout
from rollbus_wire.errors import ConfigError

CASTS = ("", "bfloat16")
#: Of the source, so that temporary arrays stay in the cache.
_BLOCK_BYTES = 1 << 20

Pairs: TypeAlias = Sequence[tuple[np.ndarray, np.ndarray]]


def encode(
    tensors: Mapping[str, np.ndarray], cast: str = "", memory: np.ndarray | None = None
) -> tuple[Layout, np.ndarray]:
    """``tensors`` as an encoded image, uint8: in ``memory`` if that has its size, else in its own.

    Fresh memory costs several times the copy. Raises `ConfigError`, `SpecError`.
    """
    layout = _cast_layout(Layout.of(tensors), cast)
    image = fitting(memory, layout.num_bytes)
    rounded = {e.name for e in layout.entries if e.label == "BF16"}
    layout.write(image, {name: value for name, value in tensors.items() if name not in rounded})
    views = layout.views(image)
    _in_blocks(
        _round, [(views[n].reshape(-1), np.ascontiguousarray(tensors[n]).reshape(-1)) for n in rounded]
    )
    return layout, image


def decode(image: np.ndarray, memory: Mapping[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
    """The tensors of an encoded image: views, and float32 arrays where it holds bfloat16.

    ``memory``: what an earlier call gave; its float32 arrays are filled again where they fit.
    """
    layout, before = read_layout(image), memory or {}
    found = layout.views(image)
    pairs = []
    for e in layout.entries:
        if e.label == "BF16":
            kept = before.get(e.name)
            fits = kept is not None and kept.shape == e.shape and kept.dtype == np.float32
            wide = kept if fits and kept is not None else np.empty(e.shape, np.float32)
            pairs.append((wide.reshape(-1), found[e.name].reshape(-1)))
            found[e.name] = wide
    _in_blocks(_widen, pairs)
    return found


def fitting(memory: np.ndarray | None, num_bytes: int) -> np.ndarray:
    """``memory`` if it has ``num_bytes``, else new bytes."""
    return memory if memory is not None and memory.size == num_bytes else np.empty(num_bytes, np.uint8)


def to_bfloat16(value: np.ndarray) -> np.ndarray:
    """float32 rounded to the nearest bfloat16, ties to even, as uint16 bits; a NaN stays one."""
    target = np.empty(value.shape, np.uint16)
    _round((target.reshape(-1), np.ascontiguousarray(value, np.float32).reshape(-1)))
    return target


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    """The float32 values of bfloat16 bits (uint16); exact."""
    target = np.empty(bits.shape, np.float32)
    _widen((target.reshape(-1), bits.reshape(-1)))
    return target


def _round(pair: tuple[np.ndarray, np.ndarray]) -> None:
    target, value = pair
    bits = value.view(np.uint32)
    odd = bits >> 16
    odd &= 1
    odd += 0x7FFF
    odd += bits
    odd >>= 16
    target[...] = odd
    nan = np.isnan(value)
    if nan.any():
        target[nan] = (bits[nan] >> 16) | 0x40


def _widen(pair: tuple[np.ndarray, np.ndarray]) -> None:
    target, bits = pair
    wide = target.view(np.uint32)
    wide[...] = bits
    wide <<= 16


def _in_blocks(function: Callable[[tuple[np.ndarray, np.ndarray]], None], pairs: Pairs) -> None:
    """Call ``function`` on blocks of ``pairs`` that fit the cache, by threads if there is much."""
    threads = shared_pool(sum(source.nbytes for _, source in pairs))
    pieces = blocks(pairs, _BLOCK_BYTES)
    for _ in threads.map(function, pieces) if threads is not None else map(function, pieces):
        pass


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
    for entry in sorted(sizes, key=lambda e: -e.dtype.itemsize):
        size = entry.stop - entry.start
        entries.append(entry._replace(start=place, stop=place + size))
        place += size
    return Layout.from_entries(entries)
