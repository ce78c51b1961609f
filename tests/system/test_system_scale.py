"""Many actors at once: they come, and whatever is asked meanwhile is done at once."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from system_kit import PATIENCE_S, descendants, end, living, long_run, runtime_folders, wait_for_steps
from system_runner import TINY, Runner, wait_for

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]


def num_actors(pid: int) -> int:
    """Actors among the processes below the launcher, by the names of their threads."""
    return sum(name(child).startswith("actor-") for child in living(descendants(pid)))


def name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except OSError:  # it has ended meanwhile
        return ""


def test_sixty_actors_come_and_go(rollbus: Runner) -> None:
    run = rollbus.folder / "run"
    process = long_run(rollbus, run)
    wait_for_steps(rollbus, run, 500, process)
    done = rollbus("scale", "actor=60", str(run), "--timeout", str(PATIENCE_S), timeout=PATIENCE_S + 30)
    assert done.returncode == 0 and "60 actor(s) ready" in done.stdout, done.stderr
    assert num_actors(process.pid) == 60
    done = rollbus("scale", "actor=1", str(run), "--timeout", str(PATIENCE_S), timeout=PATIENCE_S + 30)
    assert done.returncode == 0, done.stderr
    wait_for(lambda: num_actors(process.pid) == 1, PATIENCE_S, "the others have ended")
    wait_for_steps(rollbus, run, 500, process)
    end(process)
    assert runtime_folders(rollbus) == []


@pytest.mark.parametrize("how", ["scale", "stop", "SIGTERM", "SIGINT"])
def test_what_is_asked_while_many_come_is_done_at_once(rollbus: Runner, how: str) -> None:
    run = rollbus.folder / "run"
    process = long_run(rollbus, run)
    wait_for_steps(rollbus, run, 500, process)
    more = rollbus.start("scale", "actor=200", str(run), "--timeout", str(PATIENCE_S))
    wait_for(lambda: num_actors(process.pid) > 5, PATIENCE_S, "the first of them")
    children, began = descendants(process.pid), time.monotonic()
    if how == "scale":
        done = rollbus("scale", "actor=1", str(run), "--timeout", str(PATIENCE_S), timeout=PATIENCE_S + 30)
        assert done.returncode == 0, done.stderr
        wait_for(lambda: num_actors(process.pid) == 1, PATIENCE_S, "the others have ended")
        assert time.monotonic() - began < 30
        wait_for_steps(rollbus, run, 500, process)
        end(process)
    elif how == "stop":
        assert rollbus("stop", str(run), "--timeout", "30").returncode == 0
        process.communicate(timeout=PATIENCE_S)
    else:
        process.send_signal(getattr(signal, how))
        process.communicate(timeout=PATIENCE_S)
        assert time.monotonic() - began < 20
        assert process.returncode == 130
    assert living(children) == [] and runtime_folders(rollbus) == []
    os.killpg(more.pid, signal.SIGKILL)
    more.communicate()


def test_a_run_that_begins_with_many_actors_ends_when_it_is_told(rollbus: Runner) -> None:
    run = rollbus.folder / "run"
    process = rollbus.start("train", TINY, "run.total_steps=100000000", "actor.count=200", "--run-dir", run)
    wait_for(lambda: num_actors(process.pid) > 5, PATIENCE_S, "the first of them")
    children, began = descendants(process.pid), time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_S)
    assert time.monotonic() - began < 20
    assert living(children) == [] and runtime_folders(rollbus) == []
