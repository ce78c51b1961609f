"""Services that are started one by one say for whom they wait, and how their run ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollbus_core.paths import REGISTRY, RunPaths
from rollbus_launch.__main__ import main
from rollbus_launch.control import how_it_ended

PATIENCE_S = 60.0


class ByHand:
    """One run folder and the services that a test has started in it."""

    def __init__(self, folder: Path) -> None:
        self.recipe = folder / "r.yaml"
        self.recipe.write_text("run: {total_steps: 100000000}\nenv: {name: toy, num_envs: 8}\n")
        self.paths = RunPaths(folder / "run")
        self.processes: list[subprocess.Popen[bytes]] = []

    def serve(self, role: str) -> Path:
        """Start it; the file of what it says."""
        words = [sys.executable, "-m", "rollbus_launch", "serve", role, "--config", str(self.recipe)]
        said = self.recipe.parent / f"{role}.txt"
        with open(said, "wb") as output:
            process = subprocess.Popen(
                [*words, "--run-dir", str(self.paths.root)], stdout=output, stderr=output, env=os.environ
            )
        self.processes.append(process)
        return said

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ByHand]:
    monkeypatch.setenv("ROLLBUS_RUNTIME_DIR", str(tmp_path / "shm"))
    monkeypatch.delenv(REGISTRY, raising=False)
    found = ByHand(tmp_path)
    yield found
    found.end()


def until_said(said: Path, text: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while text not in said.read_text():
        assert time.monotonic() < deadline, said.read_text()
        time.sleep(0.1)


def test_a_service_says_for_whom_it_waits_and_when_it_goes_on(by_hand: ByHand) -> None:
    learner = by_hand.serve("learner")
    until_said(learner, f"waits for the broker at ipc://{by_hand.paths.runtime}/registry")
    by_hand.serve("broker")
    until_said(learner, "goes on: the broker is there")
    until_said(learner, "waits for a hub that has environments")
    actor = by_hand.serve("actor")
    until_said(actor, "waits for ")
    by_hand.serve("hub")
    until_said(learner, "goes on: a hub that has environments is there")
    until_said(actor, "goes on: ")
    assert learner.read_text().count("waits for the broker") == 1


@pytest.mark.parametrize("by", ["rollbus stop", "SIGTERM"])
def test_a_run_that_was_stopped_in_order_says_so(by: str, by_hand: ByHand, capsys) -> None:
    until_said(by_hand.serve("broker"), "broker ready")
    (process,) = by_hand.processes
    if by == "SIGTERM":
        process.send_signal(signal.SIGTERM)
    else:
        assert main(["stop", str(by_hand.paths.root)]) == 0
    assert process.wait(PATIENCE_S) == 0
    capsys.readouterr()
    assert main(["ps", str(by_hand.paths.root)]) == 2
    who = "rollbus stop" if by == "rollbus stop" else "a signal to its broker"
    assert f"has ended, because it was stopped by {who} (" in capsys.readouterr().err


def test_a_broker_that_is_killed_after_an_orderly_end_was_not_stopped(by_hand: ByHand) -> None:
    until_said(by_hand.serve("broker"), "broker ready")
    assert main(["stop", str(by_hand.paths.root)]) == 0
    assert how_it_ended(by_hand.paths).startswith("because it was stopped")
    by_hand.processes[0].wait(PATIENCE_S)
    until_said(by_hand.serve("broker"), "broker ready")
    by_hand.processes[1].kill()
    by_hand.processes[1].wait(PATIENCE_S)
    assert how_it_ended(by_hand.paths).startswith("without a summary")
