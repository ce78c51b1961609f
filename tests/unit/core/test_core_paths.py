"""Runtime folders: held by locks, swept when nobody holds them, also while others begin."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rollbus_core import paths
from rollbus_core.paths import AlreadyRuns, RunPaths, remove_dead
from rollbus_wire.errors import ConfigError


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setenv("ROLLBUS_RUNTIME_DIR", str(folder))
    return folder


def test_a_held_folder_stays_and_a_dead_one_goes(tmp_path: Path) -> None:
    run = RunPaths(tmp_path / "run")
    run.create()
    with run.alive():
        (run.runtime / "slab-1").write_bytes(b"x")
        assert remove_dead() == []
        assert (run.runtime / "slab-1").exists()
        assert os.stat(run.runtime).st_mode & 0o777 == 0o700
    assert remove_dead() == [run.runtime]
    assert not run.runtime.exists()


def test_a_folder_that_is_being_made_is_left_alone(tmp_path: Path) -> None:
    run = RunPaths(tmp_path / "run")
    run.create()
    assert remove_dead() == []
    old = time.time() - 2 * paths.UNFINISHED_S
    os.utime(run.runtime, (old, old))
    assert remove_dead() == [run.runtime]
    with run.alive():  # makes it again
        assert remove_dead() == []


HOLD = """
import sys
from rollbus_core.paths import RunPaths
run = RunPaths(sys.argv[1])
for turn in range(200):
    run.create()
    with run.alive():
        (run.runtime / "socket").write_bytes(b"")
        assert (run.runtime / "alive").exists() and (run.runtime / "socket").exists()
"""


def test_sweeping_while_runs_begin_takes_nothing_from_them(tmp_path: Path) -> None:
    holders = [
        subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / f"run{i}")], stderr=subprocess.PIPE)
        for i in range(2)
    ]
    swept = 0
    while any(holder.poll() is None for holder in holders):
        swept += len(remove_dead())
    for holder in holders:
        _, errors = holder.communicate()
        assert holder.returncode == 0, errors.decode()
    assert swept > 0


def test_folders_of_others_are_not_touched(runtime: Path) -> None:
    other = runtime / f"rollbus-{os.getuid() + 1}-abc"
    other.mkdir()
    os.utime(other, (0, 0))
    assert remove_dead() == [] and other.exists()


def test_a_run_is_held_as_long_as_a_process_lives(tmp_path: Path) -> None:
    run = RunPaths(tmp_path / "run")
    assert not run.held()
    hold = (
        "import sys\nfrom rollbus_core.paths import RunPaths\n"
        "with RunPaths(sys.argv[1]).alive(): input(print(flush=True))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(run.root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout and holder.stdout.readline()
        assert run.held() and run.held()
        holder.kill()
    assert not run.held() and (run.runtime / "alive").exists()  # looking removes nothing


def test_a_member_is_one_process_of_a_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLBUS_RUNTIME_DIR", str(tmp_path))
    paths = RunPaths(tmp_path / "run")
    with paths.alive(), paths.claimed(["hub", "actor"], 0), paths.claimed(["actor"], 1):
        text = rf"actor-0 of the run in {paths.root} runs already, as process {os.getpid()}; end that one"
        with pytest.raises(AlreadyRuns, match=text), paths.claimed(["learner", "actor"], 0):
            pass
        assert paths.claimants() == dict.fromkeys(("actor-0", "actor-1", "hub-0"), os.getpid())
        with paths.claimed(["learner"], 0):
            pass
        with paths.claimed(["actor"], None) as third, paths.claimed(["hub"], None) as second:
            assert (third, second) == (2, 1)
            with paths.claimed(["hub", "actor"], None) as both:
                assert both == 3
        with paths.claimed(["actor"], None) as again:
            assert again == 2
    with paths.alive(), paths.claimed(["actor"], 0):
        pass
    assert paths.claimants() == {}


def test_a_folder_whose_name_is_not_utf8_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"/r\\udcff' has a name that is not UTF-8"):
        RunPaths(tmp_path / os.fsdecode(b"r\xff"))
