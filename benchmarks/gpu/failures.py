"""What may go wrong on a device that nobody has tried yet, without ending the suite."""

from __future__ import annotations

import importlib.util

from rollbus_wire.errors import RollbusError


def _kinds() -> tuple[type[Exception], ...]:
    kinds: tuple[type[Exception], ...] = (AssertionError, RuntimeError, ValueError, TypeError, RollbusError)
    if importlib.util.find_spec("triton"):
        from triton.errors import TritonError

        kinds += (TritonError,)
    return kinds


#: Wrong results, what torch and its devices raise, and kernels that do not compile.
FAILURES = _kinds()


def first_line(error: Exception) -> str:
    """What is wrong, without the rest."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
