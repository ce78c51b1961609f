"""Allocations that fail are told from defects, with what to do."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from rollbus_core import memory
from rollbus_core.slabs import SlabFolder
from rollbus_wire.errors import SharedMemoryFull

HUGE = 10**15


@pytest.mark.parametrize(
    "allocate", [lambda: torch.empty(HUGE), lambda: np.empty(HUGE), lambda: bytearray(HUGE)]
)
def test_real_failures_are_known(allocate) -> None:
    with pytest.raises((RuntimeError, MemoryError)) as caught:
        allocate()
    assert memory.is_out_of_memory(caught.value)
    assert memory.told(caught.value, ["hub", "actor"]).endswith(
        "; free some, or use less: env.num_envs (fewer rows), actor.max_batch (smaller passes)"
    )


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has\nmore lines"),
            True,
        ),
        (RuntimeError("NPU out of memory. Tried to allocate 20.00 MiB"), True),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), True),
        (OSError(errno.ENOSPC, "No space left on device"), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_what_backends_say(error: Exception, is_one: bool) -> None:
    assert memory.is_out_of_memory(error) == is_one


def test_it_is_one_line() -> None:
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nSee the documentation")
    assert memory.told(error, ["learner"]) == (
        "out of memory: CUDA out of memory. Tried to allocate 2.00 GiB.; free some, or use less: "
        "learner.micro_batch (the same update in smaller parts)"
    )
    assert memory.told(MemoryError(), ()) == "out of memory; free some"


def test_a_limit_of_file_sizes_is_named(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from rollbus_core.slabs import SlabFolder\n"
        f"SlabFolder(Path({str(tmp_path)!r})).create(1, 1 << 20)"
    )
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))  # noqa: E731
    done = subprocess.run([sys.executable, "-c", code], preexec_fn=limit, capture_output=True, text=True)
    assert "SharedMemoryFull: no room for a slab of 1024 KiB" in done.stderr and "`ulimit -f`" in done.stderr
    assert os.listdir(tmp_path) == []


def test_too_large_a_slab_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(SharedMemoryFull, match="shm-size|ulimit"):
        SlabFolder(tmp_path).create(1, 1 << 60)
    assert os.listdir(tmp_path) == []
