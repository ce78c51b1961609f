"""Steps that many system tests share: long runs, what they wrote, what they left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
from system_runner import TINY, Runner, wait_for

#: Times are for a slow machine that does other things as well; a run that works needs a fraction.
PATIENCE_S = 120.0


def long_run(rollbus: Runner, run: Path, *overrides: str) -> subprocess.Popen[str]:
    """A run of the toy chain that only a signal ends, with its audit."""
    return rollbus.start(
        "train", TINY, "run.total_steps=100000000", "run.audit=true", "--run-dir", str(run), *overrides
    )


def steps(rollbus: Runner, run: Path) -> int:
    """Environment steps that the learner has applied."""
    rows = rollbus.lines(run / "metrics.jsonl")
    return int(rows[-1]["env_steps"]) if rows else 0


def wait_for_steps(
    rollbus: Runner, run: Path, more: int, process: subprocess.Popen[str] | None = None
) -> int:
    """Wait until ``more`` steps have been applied than now; their number."""
    target = steps(rollbus, run) + more

    def reached() -> bool:
        assert process is None or process.poll() is None, process.communicate()[1]
        return steps(rollbus, run) >= target

    wait_for(reached, PATIENCE_S, f"{target} steps")
    return steps(rollbus, run)


def member(rollbus: Runner, run: Path, name: str) -> dict[str, Any]:
    """The row of ``rollbus ps`` for ``name``."""
    return next(m for m in rollbus.members(run) if m["name"] == name)


def end(process: subprocess.Popen[str]) -> str:
    """SIGTERM; what the command had to say."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    return process.communicate(timeout=PATIENCE_S)[1]


def checkpoint_tensors(run: Path, name: str = "last") -> dict[str, np.ndarray]:
    """All tensors of a checkpoint."""
    from safetensors.numpy import load_file

    return dict(load_file(run / "checkpoints" / name / "model.safetensors"))


def assert_same_weights(a: Path, b: Path) -> None:
    """Bit for bit."""
    first, second = checkpoint_tensors(a), checkpoint_tensors(b)
    assert first and first.keys() == second.keys()
    for key, value in first.items():
        assert value.tobytes() == second[key].tobytes(), key


def services_of(run: Path) -> list[tuple[int, str]]:
    """(pid, command line) of every living process that serves ``run``."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if "serve" in words and str(run) in words:
            found.append((int(folder.name), " ".join(words)))
    return found


def descendants(pid: int) -> list[int]:
    """Process ids below ``pid``, their own sessions included."""
    import psutil

    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def living(pids: list[int]) -> list[int]:
    """Those of ``pids`` that still run."""
    import psutil

    alive = []
    for pid in pids:
        try:
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                alive.append(pid)
        except psutil.NoSuchProcess:
            continue
    return alive


def runtime_folders(rollbus: Runner) -> list[str]:
    """What is left in shared memory."""
    return sorted(os.listdir(rollbus.runtime))


def audit(run: Path) -> tuple[int, list[str]]:
    """Steps applied, and what is wrong with them: duplicates, holes, unflagged episode borders."""
    seen: set[tuple[int, int]] = set()
    problems = []
    for chunk in map(json.loads, (run / "audit" / "applied.jsonl").read_text().splitlines()):
        ends = {tuple(e) for name in ("terminated", "truncated", "interrupted") for e in chunk[name]}
        for row, runs in enumerate(chunk["rows"]):
            time_ = 0
            for position, (episode, first, length) in enumerate(runs):
                for step in range(first, first + length):
                    if (episode, step) in seen:
                        problems.append(f"duplicate {(episode, step)}")
                    seen.add((episode, step))
                time_ += length
                if position + 1 < len(runs) and (time_ - 1, row) not in ends:
                    problems.append(f"episode {episode} of row {row} breaks off without a flag")
                if position and first != 0:
                    problems.append(f"episode {episode} begins at step {first} inside a chunk")
    return len(seen), problems
