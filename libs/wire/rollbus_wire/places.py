"""Where somebody's own code is or was: in a stack that a process wrote of itself, and in a traceback."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import traceback
from typing import Any, List, Sequence, Tuple

#: The variable that tells a worker process the descriptor to write its stacks to when it gets SIGUSR1.
STACK_FD = "ROLLBUS_STACK_FD"

MAX_TRACEBACK = 16384

_OURS = re.compile(
    r"[/\\]rollbus_(wire|envs|core|simulator|actor|broker|learner|policies|accel|launch)[/\\]", re.I
)
_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")
_STANDARD = sysconfig.get_path("stdlib") + os.sep
#: A line of `faulthandler`: file, line, function.
_LINE = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.M)

#: Between the exceptions of a traceback.
_CHAINED = re.compile(
    r"\n(?:The above exception was the direct cause of the following exception"
    r"|During handling of the above exception, another exception occurred):\n"
)
#: What is said of an error of our tree, behind its frames.
_OUR_ERROR = re.compile(r"^rollbus_wire\.errors\.\w+: ", re.M)
_Frame = Tuple[str, int, str]


def write_stacks() -> None:
    """In a worker process: write the stacks of all threads whenever SIGUSR1 comes, to whom started it."""
    import faulthandler
    import signal

    if STACK_FD in os.environ and hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR1, file=int(os.environ[STACK_FD]), all_threads=True)


def place_of_stack(stack: str) -> str:
    """``step() of /x/my_env.py:86``, the innermost place of somebody's own in what `faulthandler` wrote.

    Of the thread that it calls the current one, of several stacks the last; "" if there is none.
    """
    blocks = re.split(r"\n\n|^(?=Current thread|Thread 0x)", stack, flags=re.M)
    blocks = [block for block in blocks if block.startswith("Current thread")] or blocks
    for block in reversed(blocks):
        found = _LINE.findall(block)
        place = _told([(file, int(line), name) for file, line, name in found])
        if place:
            return place
    return ""


def place_of_error(error: BaseException) -> str:
    """The same of where ``error`` was raised."""
    return _told(list(reversed(_frames(error))))


def place_of_thread(ident: int) -> str:
    """The same of where a thread of this process is now."""
    frame = sys._current_frames().get(ident)
    stack = traceback.extract_stack(frame) if frame is not None else []
    return _told([(f.filename, f.lineno or 0, f.name) for f in reversed(stack)])


def place_of_method(chain: Sequence[Any], method: str) -> str:
    """The same of where ``method`` is defined, by the first of ``chain`` whose class is of somebody's own."""
    codes = [getattr(getattr(type(each), method, None), "__code__", None) for each in chain]
    return _told([(code.co_filename, code.co_firstlineno, code.co_name) for code in codes if code])


def traceback_of(error: BaseException) -> str:
    """``error`` as Python prints it, the last `MAX_TRACEBACK` characters."""
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    return "".join(lines)[-MAX_TRACEBACK:]


def own_traceback(text: str) -> str:
    """A formatted traceback without our frames, and without exceptions that have no others.

    "" of what our own check has found, whose frames say nothing; the whole of another error in our code.
    """
    parts = _CHAINED.split(text)
    kept = [block for block in map(_without_ours, parts) if block]
    found_by_us = not kept and _OUR_ERROR.search(parts[-1])
    return "" if found_by_us else "\n\n".join(kept) or text.strip()


def _without_ours(block: str) -> str:
    head, *frames = re.split(r'^(?=  File ")', block.strip("\n"), flags=re.M)
    kept, last = [], ""
    for frame in frames:
        # Behind the last frame the exception begins at the margin.
        inside, error = re.fullmatch(r"((?:  .*\n?)+)((?:.|\n)*)", frame).groups()  # type: ignore[union-attr]
        last = error or last
        found = re.match(r'  File "(.+?)"', inside)
        if found and not _is_ours(found.group(1)):
            kept.append(inside if inside.endswith("\n") else inside + "\n")
    return (head + "".join(kept) + last).rstrip("\n") if kept else ""


def _frames(error: BaseException) -> List[_Frame]:
    return [(f.filename, f.lineno or 0, f.name) for f in traceback.extract_tb(error.__traceback__)]


def _told(innermost_first: Sequence[_Frame]) -> str:
    own = [frame for frame in innermost_first if is_own_file(frame[0])]
    others = [frame for frame in innermost_first if _INSTALLED.search(frame[0]) and not _is_ours(frame[0])]
    for file, line, name in (own or others)[:1]:
        return "%s() of %s:%d" % (name, file, line)
    return ""


def _is_ours(file: str) -> bool:
    return bool(_OURS.search(file)) or _is_numpy(file)


def _is_numpy(file: str) -> bool:
    return bool(re.search(r"[/\\](numpy|zmq)[/\\]", file))


def is_own_file(file: str) -> bool:
    """Whether ``file`` is neither ours, nor Python's, nor of an installed package."""
    if file.startswith("<") or _is_ours(file) or _INSTALLED.search(file):
        return False
    return not os.path.realpath(file).startswith((_STANDARD, os.path.realpath(_STANDARD) + os.sep))
