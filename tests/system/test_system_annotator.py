"""Late rewards in real processes: an annotator comes, dies, and another one takes over; training goes on."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from system_kit import PATIENCE_S, end, long_run, member, wait_for_steps
from system_runner import Runner, wait_for

pytestmark = pytest.mark.timeout(400)
LATE = ('learner.rewards=[{source: "late:judge", weight: 0.5}]', "learner.late_deadline_s=0.5")


@pytest.fixture
def judged(rollbus: Runner) -> Runner:
    """The command, which finds the judge."""
    path = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    rollbus.environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    return rollbus


def annotator(rollbus: Runner, run: Path) -> subprocess.Popen[str]:
    return rollbus.start("annotate", "system_judge:judge", str(run), "--column", "judge")


def mean_now(rollbus: Runner, run: Path) -> float:
    """The mean late reward of the last update."""
    rows = rollbus.lines(run / "metrics.jsonl")
    return float(rows[-1]["reward_judge"]) if rows else -1.0


@pytest.mark.long
def test_training_goes_on_whatever_becomes_of_the_annotator(judged: Runner) -> None:
    run = judged.folder / "run"
    training = long_run(judged, run, *LATE)
    wait_for_steps(judged, run, 1, training)
    assert mean_now(judged, run) == 0.0  # nobody judges: chunks go on with zeros

    first = annotator(judged, run)
    wait_for(lambda: mean_now(judged, run) == 2.0, PATIENCE_S, "a judged update")
    row = member(judged, run, "annotator-judge-0")
    assert row["state"] == "ready" and row["pid"] == first.pid
    before = wait_for_steps(judged, run, 1280, training)

    first.kill()
    first.wait()
    wait_for(lambda: mean_now(judged, run) == 0.0, PATIENCE_S, "an update without a judge")
    assert wait_for_steps(judged, run, 256, training) > before

    second = annotator(judged, run)
    wait_for(lambda: mean_now(judged, run) == 2.0, PATIENCE_S, "a judged update again")
    assert training.poll() is None
    end(training)
    said = second.communicate(timeout=PATIENCE_S)[0]
    assert second.returncode == 0, "the run has ended"
    assert said.startswith("annotator-judge-0: ") and " attached" in said
    done = judged("audit", str(run))
    assert done.returncode == 0, done.stdout + done.stderr
