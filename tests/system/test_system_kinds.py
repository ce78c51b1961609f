"""What a real run leaves in its folder is known to the check of kinds; once mended it goes on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from system_runner import TINY, Runner

from rollbus_core.paths import RunPaths
from rollbus_wire.errors import ConfigError

pytestmark = pytest.mark.timeout(300)


def test_all_that_a_run_leaves_is_checked_and_what_is_strange_starts_nothing(rollbus: Runner) -> None:
    run = rollbus.folder / "run"
    started = ["train", TINY, "--run-dir", str(run), "run.audit=true", "broker.fsync=true"]
    done = rollbus(*started)
    assert done.returncode == 0, done.stderr
    assert unknown(run) == []
    strange = run / "store" / "log"
    strange.rename(run / "kept")
    os.mkfifo(strange)
    for command in (started, ["serve", "broker", "--run-dir", str(run)], ["audit", str(run)]):
        done = rollbus(*command, timeout=60)
        assert done.returncode == 2
        assert f"{strange} is a FIFO where a file has to be; move it away" in done.stderr
        assert "Traceback" not in done.stderr and "starts again" not in done.stderr
    strange.rename(run / "moved away")
    (run / "kept").rename(strange)
    done = rollbus(*started, "run.total_steps=4000")
    assert done.returncode == 0 and "goes on from checkpoint" in done.stderr, done.stderr


def unknown(run: Path) -> list[str]:
    """Files of a run that the check would not miss, were they FIFOs. Checkpoints have their own check."""
    paths, missed = RunPaths(run), []
    for path in run.rglob("*"):
        inside = path.relative_to(run).parts
        if path.is_symlink() or not path.is_file() or inside[0] == "tensorboard":
            continue
        if inside[0] == "checkpoints" and len(inside) > 2:
            continue
        kept = path.rename(run / "kept")
        os.mkfifo(path)
        try:
            paths.check()
            missed.append(str(path))
        except ConfigError as error:
            assert str(path) in str(error)
        path.unlink()
        kept.rename(path)
    return missed
