"""Every command that opens a run folder refuses what is not of its kind there at once, and starts nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rollbus_core.checkpoint_folder import CheckpointFolder
from rollbus_core.config.load import load
from rollbus_core.paths import REGISTRY, RunPaths
from rollbus_launch.__main__ import main
from rollbus_launch.launchers.base import ProcessSpec
from rollbus_launch.launchers.local import LocalLauncher, ProcessFailed
from rollbus_launch.processes import stacks

pytestmark = pytest.mark.timeout(60)

MAKE: dict[str, Callable[[Path], None]] = {"a folder": Path.mkdir, "a FIFO": os.mkfifo}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    """The folder of a run that has ended, with a checkpoint."""
    monkeypatch.setenv("ROLLBUS_RUNTIME_DIR", str(tmp_path / "shm"))
    monkeypatch.delenv(REGISTRY, raising=False)
    monkeypatch.chdir(tmp_path)
    recipe = tmp_path / "r.yaml"
    recipe.write_text("run: {total_steps: 64, audit: true}\nenv: {name: toy, num_envs: 8}\n")
    paths = RunPaths(tmp_path / "run")
    for folder in (paths.logs, paths.store, paths.audit):
        folder.mkdir(parents=True)
    paths.config.write_text(load(recipe).to_yaml())
    files = {"config.yaml": lambda path: path.write_bytes(paths.config.read_bytes())}
    CheckpointFolder(paths.checkpoints, keep=3).write(
        {"env_steps": 64, "version": [0, 1], "updates": 1, "published": {}}, files
    )
    return paths


OPENED = [
    "store/log", "store/boot.json", "store/lock", "metrics.jsonl", "summary.json", "audit/applied.jsonl",
    "http.txt", "logs/broker-0.jsonl", "checkpoints/lineage", "config.yaml",
]  # fmt: skip


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("name", OPENED)
def test_training_does_not_begin(
    run: RunPaths, name: str, kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rollbus_launch.commands.train.Session", None)
    (run.root / name).unlink(missing_ok=True)
    MAKE[kind](run.root / name)
    assert main(["train", "r.yaml", "--run-dir", "run"]) == 2
    told = f"rollbus train: {run.root / name} is {kind} where a file has to be; move it away\n"
    assert capsys.readouterr().err == told
    assert not run.runtime.exists()


READERS = [
    ["audit"], ["compare"], ["eval"], ["export", "--out", "out"], ["policy"], 
    ["annotate", "math:sqrt", "--column", "score"], ["ps"], ["stop"], ["scale", "actor=2"],
]  # fmt: skip


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("name", ["summary.json", "metrics.jsonl", "config.yaml"])
@pytest.mark.parametrize("command", READERS, ids=lambda command: command[0])
def test_what_reads_a_run_does_not_wait(
    run: RunPaths, command: list[str], name: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (run.root / name).unlink(missing_ok=True)
    MAKE[kind](run.root / name)
    assert main([*command, "run"]) == 2
    told = f"rollbus {command[0]}: {run.root / name} is {kind} where a file has to be; move it away\n"
    assert capsys.readouterr().err == told


@pytest.mark.parametrize("kind", MAKE)
def test_an_evaluation_names_what_is_no_file_of_its_checkpoint(
    run: RunPaths, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = (run.checkpoints / "last").resolve() / "config.yaml"
    saved.unlink()
    MAKE[kind](saved)
    assert main(["eval", "run"]) == 2
    assert f"config.yaml is {kind} where a file has to be; use another checkpoint" in capsys.readouterr().err


def test_a_new_start_moves_what_is_there_away_whatever_it_is(
    run: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    MAKE["a FIFO"](run.metrics)
    MAKE["a folder"](run.http)
    monkeypatch.setattr("rollbus_launch.commands.train.Session", None)
    with pytest.raises(TypeError, match="NoneType"):  # it comes as far as the session
        main(["train", "r.yaml", "--run-dir", "run", "run.resume=never"])
    assert (run.root / "earlier-1" / "metrics.jsonl").is_fifo() and not run.metrics.exists()
    assert (run.root / "earlier-1" / "http.txt").is_dir() and not run.http.exists()


@pytest.mark.parametrize("role", ["broker", "learner", "hub", "actor"])
@pytest.mark.parametrize("kind", MAKE)
def test_a_service_that_is_refused_does_not_start_again(run: RunPaths, role: str, kind: str) -> None:
    MAKE[kind](run.store_log)
    ended: list[str] = []
    launcher = LocalLauncher(run, max_restarts=5, on_exit=lambda spec, pid, why: ended.append(why))
    launcher.up(ProcessSpec((role,), 0))
    began = time.monotonic()
    try:
        with pytest.raises(ProcessFailed):
            while time.monotonic() - began < 60.0:
                launcher.poll()
                time.sleep(0.02)
    finally:
        launcher.down(1.0)
    told = f"{run.store_log} is {kind} where a file has to be; move it away"
    assert ended == [f"{role}-0 failed in stage build: {told}"]


def test_a_stack_is_read_from_a_file(run: RunPaths) -> None:
    run.logs.joinpath("hub+actor-0.stack").write_text("in my_sim.py")
    MAKE["a FIFO"](run.logs / "actor-0.stack")
    assert stacks.read(run, "actor-0", None) == "in my_sim.py"
