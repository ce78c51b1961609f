"""A run whose disk has not a byte left stands, says so, and goes on when there is room. Needs root."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from system_kit import PATIENCE_S, end, long_run, member, steps, wait_for_steps
from system_runner import Runner, wait_for

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        os.geteuid() != 0 or not (shutil.which("unshare") and shutil.which("nsenter")),
        reason="mounting a small tmpfs needs root",
    ),
]
DISK_BYTES = 6 << 20


class WithinDisk(Runner):
    """Runs commands where ``disk`` is a small file system, which others do not see."""

    def __init__(self, runner: Runner, disk: Path) -> None:
        super().__init__(runner.folder, runner.runtime)
        self.started, self.disk = runner.started, disk
        disk.mkdir()
        mount = f"mount -t tmpfs -o size={DISK_BYTES} tmpfs {disk} && echo ready && exec sleep 600"
        self.holder = subprocess.Popen(
            ["unshare", "-m", "sh", "-c", mount], stdout=subprocess.PIPE, text=True
        )
        assert self.holder.stdout is not None and self.holder.stdout.readline() == "ready\n"

    def inside(self, *command: str) -> list[str]:
        return ["nsenter", "-t", str(self.holder.pid), "-m", "--", *command]

    def command(self, *arguments: str) -> list[str]:
        return self.inside(*super().command(*arguments))

    def lines(self, path: Path) -> list[dict[str, Any]]:
        return super().lines(Path(f"/proc/{self.holder.pid}/root{path}"))

    def shell(self, line: str) -> str:
        done = subprocess.run(self.inside("sh", "-c", line), capture_output=True, text=True, timeout=60)
        return done.stdout


@pytest.fixture
def within(rollbus: Runner) -> Iterator[WithinDisk]:
    found = WithinDisk(rollbus, rollbus.folder / "disk")
    yield found
    found.holder.kill()
    found.holder.wait()


def test_nothing_ends_and_nothing_is_lost(within: WithinDisk) -> None:
    """Services that are killed meanwhile come back when there is room."""
    run = within.disk / "run"
    frequent = ("checkpoint.every_steps=2000", "eval.every_steps=4000", "run.audit=true", "deploy.restarts=2")
    process = long_run(within, run, *frequent)
    wait_for_steps(within, run, 4000, process)
    fill = within.disk / "fill"
    for size in ("64k", "1"):
        within.shell(f"dd if=/dev/zero of={fill} bs={size} oflag=append conv=notrunc")
    wait_for(lambda: "is full" in _failure(within, run), PATIENCE_S, "ps names the disk")
    os.kill(member(within, run, "learner-0")["pid"], 9)
    wait_for(lambda: not process.poll() and _stands(within, run), PATIENCE_S, "it stands")
    within.shell(f"rm {fill}")
    wait_for_steps(within, run, 4000, process)
    errors = end(process)
    done = within("audit", str(run), "--json")
    assert "is full: nothing is taken or given until there is room" in errors
    assert "Traceback" not in errors, errors
    assert done.returncode == 0, done.stdout


def _failure(within: WithinDisk, run: Path) -> str:
    return member(within, run, "broker-0")["failure"] or ""


def _stands(within: WithinDisk, run: Path) -> bool:
    before = steps(within, run)
    within.shell("sleep 2")
    return steps(within, run) == before
