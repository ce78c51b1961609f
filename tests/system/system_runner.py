"""Run the real command in real processes, each test in folders of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from rollbus_core.paths import RunPaths
from rollbus_launch.commands.ps import row
from rollbus_launch.control import Control
from rollbus_wire.errors import RollbusError

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "recipes"

#: A run that is over in seconds: a toy whose steps cost nothing.
TINY = str(Path(__file__).with_name("tiny.yaml"))


class Runner:
    """The ``rollbus`` command with a working folder and a runtime folder."""

    def __init__(self, folder: Path, runtime: Path) -> None:
        self.folder = folder
        self.environment = dict(os.environ, ROLLBUS_RUNTIME_DIR=str(runtime), OMP_NUM_THREADS="1")
        self.runtime = runtime
        self.started: list[subprocess.Popen[str]] = []

    def __call__(self, *arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments), cwd=self.folder, env=self.environment, timeout=timeout,
            capture_output=True, text=True,
        )  # fmt: skip

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "rollbus_launch", *map(str, arguments)]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            self.command(*arguments), cwd=self.folder, env=self.environment,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self.started.append(process)
        return process

    def members(self, run_dir: Path) -> list[dict[str, Any]]:
        """The rows of ``rollbus ps``, without a process of its own: many poll them; [] of no run."""
        with mock.patch.dict(os.environ, self.environment, clear=True):
            try:
                with Control(RunPaths(run_dir)) as control:
                    return [row(member) for member in control.members().members]
            except RollbusError:
                return []

    def lines(self, path: Path) -> list[dict[str, Any]]:
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]


def wait_for(condition: Callable[[], Any], timeout: float, what: str) -> Any:
    """Poll until ``condition`` is truthy; its value."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError(f"not within {timeout} s: {what}")
