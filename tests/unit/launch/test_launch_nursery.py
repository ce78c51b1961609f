"""The nursery with its real process: what it forks, and what happens when it dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rollbus_core.config.load import load
from rollbus_core.paths import RunPaths
from rollbus_launch.launchers.base import ProcessSpec
from rollbus_launch.processes import nursery as nursery_module
from rollbus_launch.processes.children import Child
from rollbus_launch.processes.nursery import Nursery

RECIPE = Path(__file__).parents[2] / "system" / "tiny.yaml"
BROKER = ProcessSpec(("broker",), 0)
ACTOR = ProcessSpec(("actor",), 0)

pytestmark = pytest.mark.skipif(not nursery_module.available(), reason="no subreaper on this system")


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    monkeypatch.setenv("ROLLBUS_RUNTIME_DIR", str(tmp_path / "shm"))
    paths = RunPaths(tmp_path / "run")
    paths.create()
    paths.config.write_text(load(RECIPE).to_yaml())
    return paths


@pytest.fixture
def nursery(paths: RunPaths) -> Iterator[Nursery]:
    made = Nursery(paths)
    yield made
    made.close()


def pid_of(child: Child) -> int:
    deadline = time.monotonic() + 30
    while child.pid is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return child.pid


def command_of(child: Child) -> str:
    """Its command line, which is empty for an instant after the fork."""
    process, deadline = psutil.Process(pid_of(child)), time.monotonic() + 10
    while not (words := process.cmdline()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return " ".join(words)


def end(child: Child) -> int:
    child.send_signal(signal.SIGTERM)
    return child.wait(20)


def wait_for_log(paths: RunPaths, name: str, text: str) -> None:
    log = paths.logs / f"{name}.stderr"
    deadline = time.monotonic() + 30
    while not (log.exists() and text in log.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_services_are_children_of_the_launcher_in_sessions_of_their_own(
    paths: RunPaths, nursery: Nursery
) -> None:
    broker = nursery.start(paths, BROKER)
    pid = pid_of(broker)
    assert psutil.Process(pid).ppid() == os.getpid()
    wait_for_log(paths, "broker-0", "broker ready")
    assert os.getsid(pid) == pid
    assert (Path("/proc") / str(pid) / "comm").read_text().strip() == "broker-0"
    assert broker.poll() is None
    assert end(broker) == 0 and broker.poll() == 0


def test_a_kill_is_told_by_its_signal(paths: RunPaths, nursery: Nursery) -> None:
    broker = nursery.start(paths, BROKER)
    os.kill(pid_of(broker), signal.SIGKILL)
    assert broker.wait(10) == -signal.SIGKILL


def test_the_nursery_has_one_thread_when_it_forks_an_actor(paths: RunPaths, nursery: Nursery) -> None:
    actor = nursery.start(paths, ACTOR)
    pid_of(actor)
    assert psutil.Process(nursery.popen.pid).num_threads() == 1
    actor.send_signal(signal.SIGTERM)
    actor.wait(20)


def test_services_outlive_the_nursery_and_new_ones_start_without_it(
    paths: RunPaths, nursery: Nursery
) -> None:
    broker = nursery.start(paths, BROKER)
    pid_of(broker)
    nursery.popen.kill()
    nursery.popen.wait()
    actor = nursery.start(paths, ACTOR)
    assert "serve actor" in command_of(actor)
    assert broker.poll() is None
    actor.send_signal(signal.SIGTERM)
    actor.wait(30)
    assert end(broker) == 0


def test_what_was_asked_of_a_nursery_that_dies_is_started_all_the_same(
    paths: RunPaths, nursery: Nursery
) -> None:
    os.kill(nursery.popen.pid, signal.SIGSTOP)
    broker = nursery.start(paths, BROKER)
    assert broker.pid is None and broker.poll() is None
    os.kill(nursery.popen.pid, signal.SIGKILL)
    assert "serve broker" in command_of(broker)
    assert end(broker) in (0, -signal.SIGTERM)


def test_a_signal_to_a_process_that_is_not_there_yet_reaches_it(paths: RunPaths, nursery: Nursery) -> None:
    broker = nursery.start(paths, BROKER)
    broker.send_signal(signal.SIGTERM)
    assert broker.wait(20) in (0, -signal.SIGTERM)
    with pytest.raises(ProcessLookupError):
        os.kill(pid_of(broker), 0)


#: Answers every request after a while, with a number for a pid, and never reads ahead of its answers.
SLOW = """
import json, socket, sys, time
asked = socket.socket(fileno=int(sys.argv[3]))
number = 0
while asked.recv(65536):
    number += 1
    time.sleep(0.05 if number % 500 == 0 else 0.0)
    asked.send(json.dumps({"pid": number}).encode())
"""


def test_thousands_of_requests_to_a_slow_nursery_block_neither_end(
    paths: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher reads no answer while it asks, and there are more than a socket's buffer holds."""
    (tmp_path / "slow.py").write_text(SLOW)
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nexec {sys.executable} {tmp_path}/slow.py $*\n")
    python.chmod(0o755)
    monkeypatch.setattr(nursery_module.sys, "executable", str(python))
    slow = Nursery(paths)
    began = time.monotonic()
    children = [slow.start(paths, ProcessSpec(("actor",), index)) for index in range(5000)]
    assert time.monotonic() - began < 5.0, "asking waits for nobody"
    while children[-1].pid is None:
        assert time.monotonic() - began < 60.0
        time.sleep(0.001)
    assert [child.pid for child in children] == list(range(1, 5001)), "answers belong to their requests"
    slow.close()


def test_of_many_that_were_asked_of_a_nursery_that_hangs_none_is_left(
    paths: RunPaths, nursery: Nursery
) -> None:
    os.kill(nursery.popen.pid, signal.SIGSTOP)
    began = time.monotonic()
    children = [nursery.start(paths, ProcessSpec(("actor",), index)) for index in range(3000)]
    nursery.close()
    assert time.monotonic() - began < 5.0
    assert {child.poll() for child in children} == {-signal.SIGTERM}
    assert psutil.Process().children() == []


def test_what_is_called_off_in_time_is_never_there(paths: RunPaths, nursery: Nursery) -> None:
    """The last of many is scaled away before its turn has come; the others are there."""
    children = [nursery.start(paths, ProcessSpec(("broker",), index)) for index in range(12)]
    children[-1].send_signal(signal.SIGTERM)
    assert children[-1].poll() == -signal.SIGTERM and children[-1].pid is None
    assert len({pid_of(child) for child in children[:-1]}) == 11
    assert not (paths.logs / "broker-11.stderr").exists()
    for child in children:
        child.send_signal(signal.SIGKILL)
        child.wait(20)


def test_whoever_was_forked_before_the_nursery_ended_is_known(paths: RunPaths, nursery: Nursery) -> None:
    children = [nursery.start(paths, ProcessSpec(("broker",), index)) for index in range(12)]
    pid_of(children[2])
    nursery.close()
    known = {child.pid for child in children if child.pid is not None}
    assert 3 <= len(known) and {p.pid for p in psutil.Process().children()} <= known
    for child in children:
        child.send_signal(signal.SIGKILL)
        child.wait(20)


def test_waiting_for_a_process_that_does_not_come_has_an_end(paths: RunPaths, nursery: Nursery) -> None:
    os.kill(nursery.popen.pid, signal.SIGSTOP)
    broker = nursery.start(paths, BROKER)
    with pytest.raises(subprocess.TimeoutExpired):
        broker.wait(0.2)
    os.kill(nursery.popen.pid, signal.SIGCONT)
    assert end(broker) in (0, -signal.SIGTERM)
