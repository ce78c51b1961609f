"""What is not of its kind in a run folder is named before anything opens it: a FIFO would never be read."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from rollbus_core.checkpoints import file_digest, newest_whole, read_manifest, write_atomic
from rollbus_core.kinds import FILE, FOLDER, SOCKET, unlike
from rollbus_core.paths import RunPaths
from rollbus_wire.errors import CheckpointError, ConfigError

pytestmark = pytest.mark.timeout(60)

#: Paths of a run -> what each has to be.
RIGHT = {
    **{str(path.relative_to("/r")): kind for path, kind in RunPaths("/r").kinds.items()},
    **dict.fromkeys(
        (
            "logs/broker-0.jsonl", "logs/hub+actor-0.stderr", "logs/learner-0.stack",
            "logs/actor-7.failure.json", "audit/applied.jsonl", "audit/sent-abfcf725775de34d.jsonl",
            "episodes/hub-0.jsonl", "episodes/hub-1.json", "store/slab-3", "store/log.partial",
        ),
        FILE,
    ),
}  # fmt: skip


def make_socket(path: Path) -> None:
    # Bound by a short name: the system allows a hundred characters.
    here = os.getcwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


MAKE: dict[str, Callable[[Path], object]] = {
    FILE: lambda path: path.write_bytes(b"{}"), FOLDER: Path.mkdir, SOCKET: make_socket, "a FIFO": os.mkfifo,
}  # fmt: skip


def put(path: Path, kind: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    MAKE[kind](path)


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("name", RIGHT)
def test_each_path_of_a_run_is_of_its_kind(tmp_path: Path, name: str, kind: str) -> None:
    run = RunPaths(tmp_path / "run")
    put(run.root / name, kind)
    if kind == RIGHT[name]:
        run.check()
        return
    with pytest.raises(ConfigError) as told:
        run.check()
    assert str(told.value) == f"{run.root / name} is {kind} where {RIGHT[name]} has to be; move it away"


def test_a_whole_run_and_links_to_its_parts_are_right(tmp_path: Path) -> None:
    run = RunPaths(tmp_path / "run")
    run.check()  # there is nothing yet
    for number, (name, kind) in enumerate(RIGHT.items()):
        elsewhere, path = tmp_path / f"{number}", run.root / name
        if path.exists():
            continue  # a folder of what came before
        put(elsewhere, kind)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(elsewhere)
    run.check()
    run.metrics.unlink()
    run.metrics.symlink_to(tmp_path / "made later")
    run.check()


def test_links_that_lead_nowhere_are_named(tmp_path: Path) -> None:
    run = RunPaths(tmp_path / "run")
    run.root.mkdir()
    run.store.symlink_to("/no/disk")
    run.metrics.symlink_to("/no/disk/metrics")
    run.config.symlink_to("config.yaml")
    with pytest.raises(ConfigError) as told:
        run.check()
    file, folder = (f"where {kind} has to be; move it away" for kind in (FILE, FOLDER))
    assert set(str(told.value).splitlines()) == {
        f"{run.store} is a link to /no/disk, which is not there, {folder}",
        f"{run.metrics} is a link to /no/disk/metrics, which is not there, {file}",
        f"{run.config} is out of reach (Too many levels of symbolic links) {file}",
    }


def test_a_device_is_no_file(tmp_path: Path) -> None:
    assert unlike(Path("/dev/null"), FILE) == "/dev/null is a device where a file has to be"


def test_other_things_of_people_are_left_alone(tmp_path: Path) -> None:
    run = RunPaths(tmp_path / "run")
    for folder in ("notes", "logs/old", "audit/old", "checkpoints/000000000010-0.1", "store/old"):
        (run.root / folder).mkdir(parents=True)
    run.check()


def test_files_of_thousands_of_processes_are_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunPaths(tmp_path / "run")
    for number in range(500):
        put(run.logs / f"actor-{number}.jsonl", FILE)
    looked = Mock(side_effect=os.stat)
    monkeypatch.setattr(os, "stat", looked)
    run.check()
    assert 0 < looked.call_count < 50


def test_nothing_is_made_in_a_folder_that_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLBUS_RUNTIME_DIR", str(tmp_path / "shm"))
    run = RunPaths(tmp_path / "run")
    put(run.checkpoints, FILE)
    with pytest.raises(ConfigError, match="run/checkpoints is a file where a folder has to be"):
        run.create()
    assert os.listdir(run.root) == ["checkpoints"] and not run.runtime.exists()
    whole = RunPaths(put_file(tmp_path / "file"))
    with pytest.raises(ConfigError, match="cannot be written: .*/file is a file where a folder has"):
        whole.create()


def put_file(path: Path) -> Path:
    put(path, FILE)
    return path


def checkpoint(folder: Path, name: str) -> Path:
    path = folder / name
    path.mkdir()
    files = {}
    for file in ("model.safetensors", "optimiser.safetensors", "config.yaml"):
        files[file] = file_digest(put_file(path / file))
    (path / "manifest.json").write_text(
        json.dumps({"format": 1, "env_steps": 1, "version": [0, 1], "files": files})
    )
    return path


@pytest.mark.parametrize("kind", [FOLDER, "a FIFO"])
@pytest.mark.parametrize(
    "name",
    ["manifest.json", "model.safetensors", "optimiser.safetensors", "config.yaml", "environments.npz"],
)
def test_a_checkpoint_with_what_is_no_file_is_passed_over(tmp_path: Path, name: str, kind: str) -> None:
    old, new = checkpoint(tmp_path, "000000000010-0.1"), checkpoint(tmp_path, "000000000020-0.2")
    (new / name).unlink(missing_ok=True)
    put(new / name, kind)
    told = f"{new / name} is {kind} where a file has to be; use another checkpoint"
    assert newest_whole(tmp_path) == (old, [told])
    with pytest.raises(CheckpointError, match="where a file has to be"):
        read_manifest(new, verify=False)


def test_a_file_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is no checkpoint: it has no manifest\.json"):
        read_manifest(put_file(tmp_path / "last"))


def test_a_file_that_cannot_be_replaced_is_named_and_not_its_draft(tmp_path: Path) -> None:
    put(tmp_path / "config.yaml", FOLDER)
    with pytest.raises(IsADirectoryError) as told:
        write_atomic(tmp_path / "config.yaml", b"{}")
    assert told.value.filename == str(tmp_path / "config.yaml") and told.value.filename2 is None
    assert os.listdir(tmp_path) == ["config.yaml"]


def test_a_fifo_is_replaced_and_not_waited_for(tmp_path: Path) -> None:
    put(tmp_path / "actor-0.failure.json", "a FIFO")
    write_atomic(tmp_path / "actor-0.failure.json", b"{}")
    assert stat.S_ISREG(os.stat(tmp_path / "actor-0.failure.json").st_mode)
    shutil.rmtree(tmp_path)
