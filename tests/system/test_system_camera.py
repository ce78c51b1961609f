"""T13: a camera that freezes in a real run stops the robot, is named, and nothing of it is recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from system_runner import Runner

pytestmark = pytest.mark.timeout(400)
FREEZE_AT = 300
CAMERA = '''
"""A simulated robot whose camera freezes at its {freeze}th step."""
import json, time
from dataclasses import dataclass

import numpy as np

from rollbus_wire.env import Env, StepResult
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec

needs = []


@dataclass
class Config:
    how: str = "old"


def make(config, num_rows):
    return Robot(config.how, num_rows)


class Robot(Env):
    def __init__(self, how, num_rows):
        camera = ArraySpec("float32", (2,), max_age_s=0.5, frozen_after=5)
        self.spec = EnvSpec("robot", {{"wrist": camera}}, ActionSpec("discrete", num=[2]), time_limit=50)
        self.how, self.num_rows, self.steps = how, num_rows, np.zeros(num_rows, int)
        self.taken = np.zeros(num_rows)

    def observe(self, rows):
        if self.how == "old":
            live = self.steps[rows] < {freeze}
            self.taken[rows[live]] = time.monotonic()
            shown = np.where(live, self.steps[rows] + np.random.rand(len(rows)), np.random.rand(len(rows)))
        else:
            self.taken[rows] = time.monotonic()
            shown = np.minimum(self.steps[rows], {freeze}) % 7
        return {{"wrist": np.repeat(shown[:, None], 2, 1).astype(np.float32)}}

    def reset(self, rows, seeds, options):
        return self.observe(rows)

    def step(self, rows, actions, observe):
        self.steps[rows] += 1
        if (self.steps[rows] > {freeze}).any():
            time.sleep(0.1)
        no = np.zeros(len(rows), bool)
        return StepResult(self.observe(rows), np.ones(len(rows), np.float32), no, no)

    def frame_times(self, rows):
        return {{"wrist": self.taken[rows]}}

    def stop(self, rows):
        with open("stopped.jsonl", "a") as file:
            file.write(json.dumps({{"age": time.monotonic() - float(self.taken[rows].min())}}) + "\\n")
'''


@pytest.mark.parametrize("how", ["old", pytest.param("same", marks=pytest.mark.long)])
def test_a_frozen_camera(rollbus: Runner, how: str) -> None:
    folder = rollbus.folder / "mine"
    folder.mkdir()
    (folder / "robot.py").write_text(CAMERA.format(freeze=FREEZE_AT))
    recipe, run = rollbus.folder / "robot.yaml", rollbus.folder / "run"
    recipe.write_text(
        f"run: {{total_steps: 100000, audit: true}}\nenv: {{name: mine.robot, how: {how}, num_envs: 4}}\n"
        "algorithm: {name: ppo, num_steps: 16, minibatches: 2}\ndeploy: {layout: stated}\n"
    )
    done = rollbus("train", str(recipe), "--run-dir", str(run), timeout=200)
    assert done.returncode == 2, done.stderr
    assert "camera 'wrist' of row" in done.stderr and "stopped" in done.stderr
    stops = [json.loads(line) for line in (rollbus.folder / "stopped.jsonl").read_text().splitlines()]
    if how == "old":
        assert 0.3 < stops[0]["age"] < 2.0, "a loaded machine has steps that take longer than the limit"
    # What the hub gave as an outcome was seen before the freeze: nothing later is in a chunk.
    told = max(steps for line in applied(run) for steps in rows_of(line))
    assert 0 < told <= FREEZE_AT + (5 if how == "same" else 10)


def applied(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "audit" / "applied.jsonl").read_text().splitlines()]


def rows_of(line: dict) -> list[int]:
    """Steps that each row's environment had taken at the end of the chunk: episodes are of 50."""
    return [
        (episode & 0xFFFFFFF) * 50 + first + length for row in line["rows"] for episode, first, length in row
    ]
