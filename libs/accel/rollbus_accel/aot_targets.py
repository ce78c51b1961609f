"""What kernels are compiled for ahead of time, and what is measured of each."""

from __future__ import annotations

from dataclasses import dataclass

KERNELS = "rollbus_accel.kernels"


@dataclass(frozen=True)
class Target:
    """A kind of GPU to compile for."""

    name: str
    #: triton's names: back end, architecture, lanes that run together.
    backend: str
    arch: int | str
    warp_size: int
    #: Shared memory (LDS) that one program may have, from the vendors' guides.
    shared_limit_bytes: int


TARGETS = (
    Target("sm_80", "cuda", 80, 32, 166_912),
    Target("sm_90", "cuda", 90, 32, 232_448),
    Target("sm_100", "cuda", 100, 32, 232_448),
    Target("gfx942", "hip", "gfx942", 64, 65_536),
    Target("gfx950", "hip", "gfx950", 64, 163_840),
)


@dataclass(frozen=True)
class Resources:
    """What one variant takes on one target."""

    op: str
    variant: str
    target: str
    registers: int
    shared_bytes: int
    #: Local memory of a thread: what does not fit its registers.
    spill_bytes: int
    #: Why that is accepted; from ``SPILLS`` of the op's triton.py, variant to reason.
    spill_reason: str
    num_instructions: int
    #: Instructions of the matrix units.
    num_matrix: int
    #: Whether the kernel multiplies matrices of 16-bit numbers, which every target has units for.
    wants_matrix: bool
    compile_s: float
