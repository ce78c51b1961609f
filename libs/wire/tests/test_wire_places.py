"""Where somebody's own code is, in stacks and tracebacks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from rollbus_wire.places import STACK_FD, own_traceback, place_of_error, place_of_stack, traceback_of

HERE = __file__


def explode() -> None:
    raise RuntimeError("joint 3\nexploded")


def test_the_innermost_frame_of_ones_own_is_told() -> None:
    try:
        explode()
    except RuntimeError as error:
        line = explode.__code__.co_firstlineno + 1
        assert place_of_error(error) == "explode() of %s:%d" % (HERE, line)
    try:
        json.loads("{")
    except ValueError as error:
        assert place_of_error(error).startswith("test_the_innermost_frame_of_ones_own_is_told() of " + HERE)


def test_a_stack_without_own_frames_names_the_package_or_nothing() -> None:
    stack = 'Thread 0x1 (most recent call first):\n  File "%s", line 7 in %s\n'
    assert place_of_stack(stack % ("/x/site-packages/sim/core.py", "step")) == (
        "step() of /x/site-packages/sim/core.py:7"
    )
    assert place_of_stack(stack % ("/x/libs/wire/rollbus_wire/env.py", "step")) == ""
    assert place_of_stack(stack % (json.__file__, "loads")) == "" and place_of_stack("") == ""


def test_a_traceback_is_cut_to_frames_that_are_not_ours() -> None:
    ours = '  File "/x/libs/wire/rollbus_wire/env.py", line 157, in step\n    steps[row](i)\n    ^^^^\n'
    try:
        explode()
    except RuntimeError as error:
        own = traceback_of(error)
    head, frames = own.split("\n", 1)
    last = "\n\nThe above exception was the direct cause of the following exception:\n\n"
    last += head + "\n" + ours + "rollbus_wire.env.RowFailed: row 5\n"
    assert own_traceback(head + "\n" + ours + frames.rstrip("\n") + last) == own.rstrip("\n")
    assert own_traceback("no traceback") == "no traceback"
    only_ours = head + "\n" + ours + "KeyError: 3"
    assert own_traceback(only_ours) == only_ours
    assert own_traceback(head + "\n" + ours + "rollbus_wire.errors.SpecError: shape [5]") == ""


def test_a_process_that_hangs_writes_where(tmp_path: Path) -> None:
    script, stack = tmp_path / "mine.py", tmp_path / "stack"
    script.write_text(
        "import time\nfrom rollbus_wire.places import write_stacks\nwrite_stacks()\n"
        "def grip():\n    print('here', flush=True); time.sleep(100)\ngrip()\n"
    )
    with stack.open("w+b") as file:
        process = subprocess.Popen(
            [sys.executable, str(script)], pass_fds=[file.fileno()], stdout=subprocess.PIPE,
            env={**os.environ, STACK_FD: str(file.fileno())},
        )  # fmt: skip
        try:
            assert process.stdout is not None and process.stdout.readline() == b"here\n"
            process.send_signal(10)
            until = time.monotonic() + 20
            while not place_of_stack(stack.read_text()):
                assert time.monotonic() < until
                time.sleep(0.01)
            assert place_of_stack(stack.read_text()) == "grip() of %s:5" % script
        finally:
            process.kill()
            process.wait()
