"""The nursery with its real process: what it forks, and what happens when it dies."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rollbus_core.config.load import load
from rollbus_core.paths import RunPaths
from rollbus_launch import nursery as nursery_module
from rollbus_launch.children import Child
from rollbus_launch.launchers.base import ProcessSpec
from rollbus_launch.nursery import Nursery

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


def test_waiting_for_a_process_that_does_not_come_has_an_end(paths: RunPaths, nursery: Nursery) -> None:
    os.kill(nursery.popen.pid, signal.SIGSTOP)
    broker = nursery.start(paths, BROKER)
    with pytest.raises(subprocess.TimeoutExpired):
        broker.wait(0.2)
    os.kill(nursery.popen.pid, signal.SIGCONT)
    assert end(broker) in (0, -signal.SIGTERM)
