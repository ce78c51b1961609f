"""A copy that writes around the cache: what a large image overwrites need not be read into it first.

glibc does that only above three quarters of the last-level cache, which can be hundreds of megabytes; below,
every byte that is written is read from memory before. Needs numba, on x86-64; compiled at the first call.
"""

from __future__ import annotations

import platform
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

#: Whether this processor's stores may bypass the cache in a way that is worth it.
AVAILABLE = platform.machine() == "x86_64"


def _store(typing_context: Any, target: Any, index: Any, value: Any) -> Any:
    """target[index] = value, int64, with LLVM's hint `nontemporal`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = builder.gep(array.data, [arguments[1]])
        store = builder.store(arguments[2], place)
        store.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)]))
        return context.get_dummy_value()

    return types.void(target, index, value), generate


def _order(typing_context: Any) -> Any:
    """Such stores are ordered by nothing else."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


_store_around: Any = intrinsic(_store)
_fence: Any = intrinsic(_order)


@numba.njit(
    "void(int64[::1], Array(int64, 1, 'C', readonly=True))",
    nogil=True,
    boundscheck=False,
    error_model="numpy",
)
def _copy_words(target: np.ndarray, source: np.ndarray) -> None:
    for i in range(source.size):
        _store_around(target, i, source[i])
    _fence()


def copy_around(target: np.ndarray, source: np.ndarray) -> None:
    """Copy contiguous ``source`` into ``target`` of equal dtype and size."""
    to, of = target.reshape(-1).view(np.uint8), source.reshape(-1).view(np.uint8)
    words = of.size // 8 * 8
    source_words = of[:words].view(np.int64)
    source_words.flags.writeable = False
    _copy_words(to[:words].view(np.int64), source_words)
    to[words:] = of[words:]
