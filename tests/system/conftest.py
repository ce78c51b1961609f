"""The ``rollbus`` fixture: the real command, in folders of the test's own."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from system_runner import Runner


@pytest.fixture
def rollbus(tmp_path: Path) -> Iterator[Runner]:
    runtime = Path("/dev/shm") / f"t{os.getpid()}-{time.monotonic_ns() % 10**9}"
    runtime.mkdir(mode=0o700)
    runner = Runner(tmp_path, runtime)
    yield runner
    for process in runner.started:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
    left = list(runtime.iterdir())
    subprocess.run(["rm", "-rf", str(runtime)], check=False)
    assert not left, f"shared memory left behind: {left}"
