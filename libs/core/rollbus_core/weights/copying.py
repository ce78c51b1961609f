"""Copies of many tensors at the speed of memory.

One thread does not fill the memory bus, and numpy gives the GIL up while it copies: large copies are cut
into blocks that a few threads share. They sleep between copies and never spin.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np

#: Below this, waking a thread costs more than it saves.
MIN_SHARED_BYTES = 8 << 20
BLOCK_BYTES = 4 << 20
MAX_THREADS = 4


def num_threads() -> int:
    """Threads that a large copy may use: the cores of this process, at most `MAX_THREADS`."""
    return min(MAX_THREADS, len(os.sched_getaffinity(0)))


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
    threads = shared_pool(sum(source.nbytes for _, source in pairs))
    if threads is None:
        for target, source in pairs:
            np.copyto(target, source)
        return
    for _ in threads.map(_copy, blocks(pairs, BLOCK_BYTES)):
        pass


def _copy(pair: tuple[np.ndarray, np.ndarray]) -> None:
    np.copyto(*pair)


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
