"""Memory that this machine or a device does not have: told apart from defects, with what to do."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator, Sequence
from pathlib import Path

from rollbus_wire.errors import SharedMemoryFull

#: What backends (CUDA, HIP, NPU, MUSA) and torch's CPU allocator say; only some have a class for it.
_SAID = ("out of memory", "can't allocate memory")
#: Role -> what makes it need less.
_LESS = {
    "learner": "learner.micro_batch (the same update in smaller parts)",
    "actor": "actor.max_batch (smaller passes)",
    "hub": "env.num_envs (fewer rows)",
    "evaluator": "eval.num_envs (fewer rows)",
}


@contextlib.contextmanager
def room_for(what: str, folder: Path) -> Iterator[None]:
    """Pages of shared memory in ``folder`` are taken here for ``what``.

    All at once, so that a full memory is an error here and not a bus error at their first use.

    Raises `SharedMemoryFull`, with what to do.
    """
    try:
        yield
    except OSError as error:
        if error.errno == errno.EFBIG:
            what_to_do = (
                "a limit of this process (`ulimit -f`) or of the file system allows no file that large"
            )
        elif error.errno in (errno.ENOSPC, errno.ENOMEM):
            what_to_do = "free memory there, give it more (docker: --shm-size), or set ROLLBUS_RUNTIME_DIR"
        else:
            raise
        raise SharedMemoryFull(f"no room for {what} in {folder}: {error.strerror}; {what_to_do}") from None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on any device."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    return isinstance(error, RuntimeError) and any(said in str(error).lower() for said in _SAID)


def told(error: BaseException, roles: Sequence[str]) -> str:
    """One line about an ``error`` that `is_out_of_memory`, for a process with ``roles``."""
    said = str(error).strip().split("\n")[0]
    less = [_LESS[role] for role in roles if role in _LESS]
    advice = "free some, or use less: " + ", ".join(less) if less else "free some"
    return f"out of memory{': ' * bool(said)}{said}; {advice}"
