"""What producer and consumer of `bench_chunks.py` do with a chunk: the same for us and for every peer."""

from __future__ import annotations

import numpy as np


def source(num_bytes: int) -> np.ndarray:
    """Random bytes, uint8 [num_bytes]: what a simulator would have made."""
    return np.random.default_rng(0).integers(0, 255, num_bytes, dtype=np.uint8)


def fill(target: np.ndarray, made: np.ndarray, number: int) -> None:
    """Write chunk ``number`` whole into ``target``; no two are equal."""
    made[:8] = np.frombuffer(np.int64(number).tobytes(), np.uint8)
    np.copyto(target, made)


def read(chunk: np.ndarray) -> int:
    """The sum of all bytes, eight at a time."""
    return int(chunk[: len(chunk) // 8 * 8].view(np.uint64).sum())
