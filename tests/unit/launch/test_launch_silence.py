"""What people are told of a process that hangs: the place first, its stack once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rollbus_core.paths import RunPaths
from rollbus_launch.processes import silence, stacks

STACK = """Thread 0x00007f0000000001 (most recent call first):
  File "/home/me/other.py", line 3 in wait

Current thread 0x00007f0000000002 (most recent call first):
  File "/usr/lib/python3/site-packages/numpy/core.py", line 4 in dot
  File "/home/me/my_env.py", line 21 in grip
  File "/home/me/my_env.py", line 13 in step
  File "/x/libs/wire/rollbus_wire/env.py", line 157 in step"""


def member(name: str, state: str = "lost", pid: int = 7, failure: str = "") -> dict[str, Any]:
    return {
        "name": name, "role": name.partition("-")[0], "state": state, "pid": pid, "host": "here",
        "stage": "run", "silent_s": 6.04, "failure": failure,
    }  # fmt: skip


def test_one_process_is_told_of_once_with_the_place_first() -> None:
    members = [
        member("actor-0", failure="silent for 5.0 s in stage 'run', which may last 2.0 s"),
        member("hub-0", failure="my env: joint 3 is hot"), member("broker-0", "running", 8),
    ]  # fmt: skip
    found = silence.lost(members)
    assert [[m["name"] for m in each] for each in found.values()] == [["hub-0", "actor-0"]]
    lines = silence.told(found["here", 7], STACK, 60.0).split("\n")
    assert lines[0].startswith(
        "hub-0 is lost: silent for 6.0 s in stage 'run', in grip() of /home/me/my_env.py:21 "
        "(with actor-0, of the same process); env.step_timeout_s ends no step"
    )
    assert "60 s more (deploy.hung_after_s)" in lines[0]
    assert lines[1] == "last failure: my env: joint 3 is hot" and "\n".join(lines[2:]) == STACK
    assert "silent for" not in "".join(lines[1:])
    again = silence.told(found["here", 7], STACK, shown=True)
    assert "my_env.py:21" in again and again.endswith("\n(its stack stands above)")


def test_a_silent_process_is_asked_and_then_told_of_until_it_is_back() -> None:
    known, one, two = silence.Silence(), ("here", 1), ("here", 2)
    assert known.seen([one]) == ({one}, set())
    assert known.seen([one, two]) == ({two}, {one})
    assert known.seen([one]) == (set(), set())
    assert known.seen([]) == (set(), set())
    assert known.seen([one]) == ({one}, set()) and known.seen([one]) == (set(), {one})
    assert [known.shown(stack) for stack in (STACK, STACK.replace("0002", "0003"), "other")] == [0, 1, 0]


def test_an_older_stack_is_forgotten(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    paths.create()
    stacks.forget(paths, "hub+actor-0")
    stacks.path(paths, "hub+actor-0").write_text("older")
    stacks.forget(paths, "hub+actor-0")
    assert stacks.read(paths, "hub-0", None) == "no stack: it did not answer"
