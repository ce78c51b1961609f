"""Copies of many tensors at the speed of memory.

One thread does not fill the memory bus, and numpy gives the GIL up while it copies: large copies are cut
into blocks that a few threads share. They sleep between copies and never spin. Copies of models that no
cache holds are written around it, where numba is installed (`streaming`).
"""

from __future__ import annotations

import functools
import importlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from rollbus_core.cores import num_cores

#: Below this, waking a thread costs more than it saves.
MIN_SHARED_BYTES = 8 << 20
BLOCK_BYTES = 4 << 20
MAX_THREADS = 4
#: Above this, what is copied does not stay in a cache anyway.
MIN_AROUND_BYTES = 64 << 20


def num_threads() -> int:
    """Threads that a large copy may use: the cores of this process, at most `MAX_THREADS`."""
    return min(MAX_THREADS, num_cores())


@functools.cache
def pool() -> ThreadPoolExecutor:
    """The threads of this process for copies and digests; made at the first large copy."""
    return ThreadPoolExecutor(num_threads(), thread_name_prefix="weights")


# Threads do not survive a fork.
os.register_at_fork(after_in_child=pool.cache_clear)


def shared_pool(num_bytes: int) -> ThreadPoolExecutor | None:
    """`pool`, or None if ``num_bytes`` are too few to share or there is one core."""
    return pool() if num_bytes >= MIN_SHARED_BYTES and num_threads() > 1 else None


def copy_tensors(targets: Mapping[str, np.ndarray], sources: Mapping[str, np.ndarray]) -> None:
    """Copy each of ``sources`` into the target of its name, in place.

    Raises `KeyError` for a name without target, `ValueError` for another shape; numpy's casting rules
    hold for dtypes ("same_kind").
    """
    pairs = [(targets[name], source) for name, source in sources.items()]
    for target, source in pairs:
        if target.shape != source.shape:
            raise ValueError(f"a tensor of shape {list(source.shape)} for a target of {list(target.shape)}")
    num_bytes = sum(source.nbytes for _, source in pairs)
    threads, around = shared_pool(num_bytes), _around() if num_bytes >= MIN_AROUND_BYTES else None

    def copy(pair: tuple[np.ndarray, np.ndarray]) -> None:
        (np.copyto if around is None or not _plain(*pair) else around)(*pair)

    pieces = blocks(pairs, BLOCK_BYTES)
    for _ in threads.map(copy, pieces) if threads is not None else map(copy, pieces):
        pass


def _plain(target: np.ndarray, source: np.ndarray) -> bool:
    """Whether bytes may simply be moved, in whole words."""
    return (
        target.dtype == source.dtype
        and target.flags.c_contiguous
        and source.flags.c_contiguous
        and not (target.ctypes.data | source.ctypes.data) % 8
    )


class _Around:
    """`streaming.copy_around`, once a thread has compiled it: nobody waits for that."""

    def __init__(self) -> None:
        self.copy: Callable[[np.ndarray, np.ndarray], None] | None = None
        threading.Thread(target=self._load, name="weights-compile", daemon=True).start()

    def _load(self) -> None:
        try:
            module = importlib.import_module("rollbus_core.weights.streaming")
        except ImportError:  # without numba, numpy copies
            return
        self.copy = module.copy_around if module.AVAILABLE else None


_streaming = functools.cache(_Around)


def _around() -> Callable[[np.ndarray, np.ndarray], None] | None:
    return _streaming().copy


def blocks(
    pairs: Iterable[tuple[np.ndarray, np.ndarray]], num_bytes: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """``pairs`` with the large ones cut along their flat order into ``num_bytes`` of the source each."""
    for target, source in pairs:
        if source.nbytes <= num_bytes or not (target.flags.c_contiguous and source.flags.c_contiguous):
            yield target, source
            continue
        flat_target, flat_source = target.reshape(-1), source.reshape(-1)
        step = num_bytes // source.itemsize
        for start in range(0, source.size, step):
            yield flat_target[start : start + step], flat_source[start : start + step]
