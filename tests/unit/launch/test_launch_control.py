"""Commands that ask a run say at once that it has ended, and compare draws only what was asked for."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from rollbus_core.paths import REGISTRY, RunPaths
from rollbus_launch.__main__ import main
from rollbus_launch.commands import train
from rollbus_launch.control import Control, how_it_ended
from rollbus_wire.errors import DeadlineExceeded


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    """A run that was, with its summary."""
    monkeypatch.setenv("ROLLBUS_RUNTIME_DIR", str(tmp_path / "shm"))
    monkeypatch.delenv(REGISTRY, raising=False)
    paths = RunPaths(tmp_path / "run")
    paths.create()
    paths.config.write_text("{}")
    paths.summary.write_text(json.dumps({"env_steps": 23040, "updates": 45, "stopped_by": "evaluation"}))
    monkeypatch.chdir(tmp_path)
    return paths


@pytest.mark.parametrize("command", [["ps"], ["stop"], ["scale", "actor=2"]])
def test_a_run_that_has_ended_is_told_at_once(command: list[str], ended: RunPaths, capsys) -> None:
    began = time.monotonic()
    assert main([*command, str(ended.root)]) == 2
    assert time.monotonic() - began < 2.0  # nobody is waited for
    said = capsys.readouterr().err
    assert f"the run in {ended.root} has ended, by evaluation, at 23,040 steps" in said


def test_how_a_run_ended(ended: RunPaths) -> None:
    ended.summary.write_text(json.dumps({"env_steps": 0, "updates": 1200, "stopped_by": "total_updates"}))
    assert how_it_ended(ended) == "by total_updates, at 1,200 updates"
    later = time.time() + 10
    os.utime(ended.config, (later, later))  # started again, and killed before it wrote a summary
    assert how_it_ended(ended).startswith("without a summary")
    ended.summary.unlink()
    assert str(ended.logs) in how_it_ended(ended)


def test_a_broker_elsewhere_is_asked_all_the_same(ended: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(REGISTRY, "tcp://127.0.0.1:1")
    with pytest.raises(DeadlineExceeded, match="tcp://127.0.0.1:1 within 0.05 s"):
        with Control(ended, timeout_s=0.05) as control:
            control.members()


def test_a_run_whose_broker_is_silent_is_asked(ended: RunPaths) -> None:
    with ended.alive(), pytest.raises(DeadlineExceeded, match="no broker answers"):
        with Control(ended, timeout_s=0.05) as control:
            control.members()


def test_a_folder_that_takes_no_link_is_no_reason_to_fail(ended: RunPaths) -> None:
    Path("runs").mkdir()
    assert train._point_latest(ended) == "" and Path("runs/latest").resolve() == ended.root
    Path("runs/latest").unlink()
    Path("runs").rmdir()
    Path("runs").write_text("")  # as little of a folder to write in as a read-only one
    assert "runs/latest cannot be made" in train._point_latest(ended)


def test_keys_name_roles_without_articles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    create = ["keys", "create", "--folder", str(tmp_path / "keys")]
    assert main([*create, "actor", "--role", "actor"]) == 2
    assert "a key of role actor names the key of role broker that it dials" in capsys.readouterr().err
    assert main([*create, "broker", "--role", "broker"]) == main([*create, "actor", "--role", "actor"]) == 0
    assert f"; for actor on another host, copy {tmp_path}" in capsys.readouterr().out


def test_compare_draws_only_into_the_file_that_is_named(ended: RunPaths, capsys) -> None:
    evaluation = {"mean_return": 477.0, "ci95": 3.0, "env_steps": 20480, "version": "0.40", "episodes": [1]}
    ended.evaluations.write_text(json.dumps(evaluation) + "\n")
    before = sorted(os.listdir())
    assert main(["compare", str(ended.root)]) == 0
    assert "curve" not in capsys.readouterr().out and sorted(os.listdir()) == before
    assert main(["compare", str(ended.root), "--curve", "two.png"]) == 0
    said = capsys.readouterr().out
    assert "curve: two.png" in said or "curve: - (matplotlib is not installed" in said
