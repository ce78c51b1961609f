"""`check_env` passes a good environment and catches each seeded defect."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from wire_examples import Spaces, TimeLimit, Walk

from rollbus_wire import check
from rollbus_wire.check import check_env
from rollbus_wire.env import Rows
from rollbus_wire.errors import SpecError


def test_good_environments_pass():
    for make in (
        Walk,
        lambda: TimeLimit(Walk(), 5),
        lambda num_rows: Rows([Walk() for _ in range(num_rows)]),
    ):
        report = check_env(make, num_rows=3, steps=60)
        assert report.ok, str(report)
        assert len(report.passed) == 10 and len(report.skipped) == 2
    assert check_env(Spaces).ok


class Batched(Rows):
    """Rows with a defect put in by the tests."""

    def __init__(self, num_rows):
        super().__init__([self.make_row() for _ in range(num_rows)])
        self.defect()

    def make_row(self):
        return Walk()

    def state(self, **changes):
        self.spec = dataclasses.replace(self.spec, **changes)

    def defect(self):
        pass


class WrongDtype(Batched):
    def reset(self, rows, seeds, options):
        return {k: v.astype(np.float64) for k, v in super().reset(rows, seeds, options).items()}


class WrongShape(Batched):
    def observe(self, rows):
        return {k: v[:, :1] for k, v in super().observe(rows).items()}


class WrongKeys(Batched):
    def step(self, rows, actions, observe):
        result = super().step(rows, actions, observe)
        return result._replace(obs={"other": result.obs["obs"]} if observe else None)


class OutOfRange(Batched):
    class Far(Walk):
        def observation(self):
            return super().observation() + (200 if self.count == 2 else 0)

    make_row = Far


class RewardOfAnotherShape(Batched):
    def step(self, rows, actions, observe):
        result = super().step(rows, actions, observe)
        return result._replace(reward=result.reward[:, None])


class BadReward(Batched):
    class Bad(Walk):
        def step(self, action):
            obs, reward, *rest = super().step(action)
            return (obs, float("nan") if self.count == 3 else reward, *rest)

    make_row = Bad


class UndeclaredSuccess(Batched):
    def step(self, rows, actions, observe):
        result = super().step(rows, actions, observe)
        return result._replace(success=np.zeros(len(rows), bool))

    def defect(self):
        self.state(has_success=False)


class MissingSuccess(Batched):
    def step(self, rows, actions, observe):
        return super().step(rows, actions, observe)._replace(success=None)


class Reused(Batched):
    def observe(self, rows):
        return self.kept(super().observe(rows))

    def kept(self, obs):
        self.buffer = getattr(
            self, "buffer", {k: np.zeros((9,) + v.shape[1:], v.dtype) for k, v in obs.items()}
        )
        for key, value in obs.items():
            self.buffer[key][: len(value)] = value
        return {k: self.buffer[k][: len(v)] for k, v in obs.items()}

    def step(self, rows, actions, observe):
        result = super().step(rows, actions, observe)
        return result._replace(obs=self.kept(result.obs) if observe else None)


class Unseeded(Batched):
    class Random(Walk):
        def reset(self, seed=None, options=None):
            return super().reset(None, options)

    make_row = Random


class Sticky(Batched):
    """A done flag that reset does not clear."""

    class Stuck(Walk):
        done = False

        def step(self, action):
            obs, reward, over, *rest = super().step(action)
            self.done = self.done or over
            return (obs, reward, self.done, *rest)

    make_row = Stuck


class SharedRandom(Batched):
    """Rows draw from one generator."""

    def reset(self, rows, seeds, options):
        self.generator = np.random.RandomState(int(seeds[0]))
        return super().reset(rows, seeds, options)

    def step(self, rows, actions, observe):
        result = super().step(rows, actions, observe)
        return result._replace(reward=result.reward + self.generator.rand(len(rows)).astype(np.float32))


class AutoReset(Batched):
    """Begins the next episode inside step, from a random place."""

    class Resetting(Walk):
        def step(self, action):
            obs, reward, over, truncated, info = super().step(action)
            if over:
                obs, _ = self.reset(int(self.place * 1000))
            return obs, reward, over, truncated, info

    make_row = Resetting


class AutoResetOnObserve(Batched):
    def step(self, rows, actions, observe):
        result = super().step(rows, actions, observe)
        for row, over in zip(rows.tolist(), result.terminated):
            if over:
                self._latest[row], _ = self.envs[row].reset(7)
        return result


class LateIsStale(Batched):
    def step(self, rows, actions, observe):
        before = [self._latest[row] for row in rows.tolist()]
        result = super().step(rows, actions, True)
        if not observe:
            for row, old in zip(rows.tolist(), before):
                self._latest[row] = old
        return result if observe else result._replace(obs=None)


class OwnTruncation(Batched):
    class Cutting(Walk):
        def step(self, action):
            obs, reward, over, _, info = super().step(action)
            return obs, reward, over, self.count == 2, info

    make_row = Cutting

    def defect(self):
        self.state(internal_truncation=False)


class BadState(Batched):
    def get_state(self, rows):
        return [b""] * len(rows)

    def set_state(self, rows, states):
        return self.observe(rows)


class Raising(Batched):
    def observe(self, rows):
        raise KeyError("camera")


class SpecThatChanges(Batched):
    def defect(self):
        self.state(optimal_return=np.float32(0.1))
        self.state(groups={"policy": ("obs",)})


@pytest.mark.parametrize(
    ("make", "name", "text"),
    [
        (WrongDtype, "data is as stated", "float64"),
        (WrongShape, "data is as stated", r"[2, 1] in observe"),
        (WrongKeys, "data is as stated", "other"),
        (OutOfRange, "finite numbers", "above its high 100"),
        (RewardOfAnotherShape, "data is as stated", "reward is float32 [2, 1]"),
        (BadReward, "finite numbers", "at step 3"),
        (UndeclaredSuccess, "success as declared", "has_success = False"),
        (MissingSuccess, "success as declared", "success = None"),
        (Reused, "arrays are given away", "return a copy"),
        (Unseeded, "same seed, same numbers", "observation 'obs' at reset"),
        (Sticky, "flags", "done flag"),
        (SharedRandom, "rows are independent", "reward at step"),
        (AutoReset, "no reset by itself", "seems to reset itself"),
        (AutoResetOnObserve, "no reset by itself", "changed after the end"),
        (LateIsStale, "late observation is exact", "at step 1"),
        (OwnTruncation, "flags", "internal_truncation"),
        (BadState, "state can be restored", "differ"),
        (Raising, "data is as stated", "KeyError"),
        (SpecThatChanges, "spec travels", "another one"),
    ],
)
def test_each_defect_is_found(make, name, text):
    report = check_env(make, num_rows=2, steps=80)
    assert not report.ok
    found = [str(problem) for problem in report.problems]
    assert any(p.startswith(name) and text in p for p in found), "\n".join(found)


def test_promises_that_are_not_made_are_not_checked():
    class Honest(Unseeded):
        def defect(self):
            self.state(deterministic=False, seeding="none")

    report = check_env(Honest)
    assert report.ok and len(report.skipped) == 5, str(report)


def test_the_command_line(capsys):
    assert check.main(["wire_examples:Walk", "--steps", "30"]) == 0
    assert "Walk: ok" in capsys.readouterr().out
    assert check.main(["test_wire_check:WrongDtype"]) == 1
    assert "PROBLEM" in capsys.readouterr().out
    for path in ("wire_examples", "no_such_module:x", "wire_examples:nothing"):
        assert check.main([path]) == 2
        assert capsys.readouterr().err.splitlines()[-1].startswith("error: ")
    with pytest.raises(SpecError, match="module:factory"):
        check.load_factory("x")


class Spaceless:
    def reset(self, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, True, False, {}


class FailingToStart(Walk):
    def __init__(self):
        raise OSError("no robot")


def test_an_environment_that_cannot_be_made_is_a_problem(capsys):
    assert check.main(["test_wire_check:Spaceless"]) == 1
    shown = capsys.readouterr().out
    assert shown.startswith("Spaceless: 1 problem\n")
    assert "PROBLEM  it can be made: Spaceless has no observation_space; set self." in shown
    (problem,) = check_env(FailingToStart).problems
    assert problem.text.startswith("raised OSError: no robot (test_wire_check.py:")


def test_one_raised_error_is_reported_once():
    class Broken(Walk):
        def step(self, action):
            raise ValueError("gripper")

    for make in (Raising, Broken):
        report = check_env(make, num_rows=2, steps=10)
        assert len(report.problems) == 1, str(report)
        same = [text for text in report.skipped if "the same error as 'data is as stated'" in text]
        assert len(same) >= 2


class Turned(Walk):
    """Shows a quaternion that is as long as stated; w comes last."""

    rotations = {"obs": [("quat_xyzw", 0)]}

    def __init__(self, length=1.0):
        super().__init__()
        self.observation_space = type(self.observation_space)(-2.0, 2.0, (4,), np.float32)
        self.length = length

    def reset(self, **options):
        super().reset(**options)
        return np.array([0, 0, 0, 1], np.float32), {}

    def step(self, action):
        _, *rest = super().step(action)
        return (np.array([0, 0.6, 0, 0.8], np.float32) * self.length, *rest)


def test_rotations_have_length_one():
    report = check_env(Turned, num_rows=2, steps=60)
    assert "rotations as stated" in report.passed, str(report)
    report = check_env(lambda: Turned(0.5), num_rows=2, steps=60)
    problem = next(p for p in report.problems if p.check == "rotations as stated")
    assert "observation 'obs' at step 1: elements 0 to 3 are no quat_xyzw: a length is 0.5" in problem.text


def test_a_check_that_hangs_ends_with_its_place(tmp_path):
    (tmp_path / "hangs.py").write_text(
        "import time\nfrom wire_examples import Walk\n\n"
        "class Hangs(Walk):\n    def step(self, action):\n        time.sleep(1000)\n"
    )
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(
        [sys.executable, "-m", "rollbus_wire.check", "hangs:Hangs", "--limit", "0.5"], cwd=str(tmp_path),
        env={**os.environ, "PYTHONPATH": paths}, capture_output=True, timeout=60,
        text=True,
    )  # fmt: skip
    assert ran.returncode == 1
    assert (
        "PROBLEM  data is as stated: has not ended within 0.5 s (--limit): it is in step() of " in ran.stdout
    )
    assert "hangs.py:6" in ran.stdout
    assert ran.stderr.splitlines()[-1] == "checking: data is as stated"
