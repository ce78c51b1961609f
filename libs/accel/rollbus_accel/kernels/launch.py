"""Launch parameters of Triton kernels, from what the device says. Importing this needs no triton."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from rollbus_accel.kernels.base import interpreted

#: Threads of one program at most, on every GPU.
MAX_THREADS = 1024


@dataclass(frozen=True)
class Properties:
    """What launch parameters depend on."""

    warp_size: int
    num_multiprocessors: int
    shared_memory_bytes: int


#: Of a device that does not say, and of the interpreter.
ORDINARY = Properties(warp_size=32, num_multiprocessors=64, shared_memory_bytes=65536)


def properties(device: torch.device) -> Properties:
    """Properties of ``device``: warps are 64 wide on AMD's CDNA and 32 on most others."""
    return ORDINARY if device.type == "cpu" else _properties(device.type, device.index or 0)


@functools.cache
def _properties(kind: str, index: int) -> Properties:
    found = getattr(torch, kind).get_device_properties(index)
    memory = getattr(found, "shared_memory_per_block_optin", 0)
    return Properties(
        warp_size=getattr(found, "warp_size", ORDINARY.warp_size),
        num_multiprocessors=getattr(found, "multi_processor_count", ORDINARY.num_multiprocessors),
        shared_memory_bytes=memory or ORDINARY.shared_memory_bytes,
    )


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least ``n`` and 1."""
    return 1 << max(0, n - 1).bit_length()


def block(n: int, most: int, least: int = 1) -> int:
    """A block size for ``n`` elements: a power of two in [``least``, ``most``], which are powers of two."""
    return max(least, min(most, power_of_two(n)))


def num_warps(num_elements: int, warp_size: int, per_thread: int = 8) -> int:
    """Warps for a block of ``num_elements``, ``per_thread`` each: a power of two, at most 1024 threads."""
    wanted = num_elements // (warp_size * per_thread)
    most = min(16, MAX_THREADS // warp_size)
    return max(1, min(most, power_of_two(wanted)))


def time_tile(num_steps: int, warp_size: int) -> tuple[int, int]:
    """(steps, columns) of a tile that is scanned at once: a warp wide and at most 1024 elements."""
    return block(num_steps, most=1024 // warp_size), warp_size


def ceil_div(a: int, b: int) -> int:
    """``a / b`` rounded up: programs for ``a`` elements in blocks of ``b``."""
    return -(-a // b)


def upcast_dot() -> bool:
    """Whether operands of ``tl.dot`` must be float32: the interpreter multiplies bf16 as integers."""
    return interpreted()
