"""Ending a loop in order when the process is asked to."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import Any, Callable, Iterator, List, Tuple


@contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """Whether SIGTERM or SIGINT came; a second one interrupts what is running."""
    came: List[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def handle(number: int, frame: Any) -> None:
        if came:
            raise KeyboardInterrupt
        came.append(number)

    before: List[Tuple[signal.Signals, Any]] = []
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            before.append((number, signal.signal(number, handle)))
        yield lambda: bool(came)
    finally:
        for installed, handler in before:
            signal.signal(installed, handler)
