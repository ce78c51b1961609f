"""Frames that are too old or always the same stop the rows that would act on them."""

import numpy as np
import pytest

from rollbus_wire.env import Env, StepResult
from rollbus_wire.errors import SpecError
from rollbus_wire.freshness import Freshness, StaleFrame
from rollbus_wire.link import local_pair
from rollbus_wire.messages import Fault, Outcome, Reset, Step
from rollbus_wire.peer import Peer
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec

MAX_AGE_S, PERIOD_S, REPEATS = 0.2, 0.06, 4


class Robot(Env):
    """Two arms with a camera each; ``frozen`` and ``stuck`` are the rows whose camera is."""

    def __init__(self, clock):
        camera = ArraySpec("uint8", (2, 2, 3), layout="HWC", max_age_s=MAX_AGE_S, frozen_after=REPEATS)
        self.spec = EnvSpec(
            "robot", {"joints": ArraySpec("float32", (2,)), "wrist": camera}, ActionSpec("discrete", num=[2]),
            control_period_s=PERIOD_S,
        )  # fmt: skip
        self.num_rows, self.clock = 2, clock
        self.frames, self.times = np.zeros(2, np.uint8), np.zeros(2)
        self.frozen, self.stuck, self.stopped = set(), set(), []

    def reset(self, rows, seeds, options):
        return self.observe(rows)

    def step(self, rows, actions, observe):
        zeros = np.zeros(len(rows), bool)
        return StepResult(self.observe(rows), zeros.astype(np.float32), zeros, zeros)

    def observe(self, rows):
        for row in rows:
            if row not in self.frozen:
                self.times[row] = self.clock()
                self.frames[row] += row not in self.stuck
        frames = np.ones((len(rows), 2, 2, 3), np.uint8) * self.frames[rows][:, None, None, None]
        return {"joints": np.zeros((len(rows), 2), np.float32), "wrist": frames}

    def frame_times(self, rows):
        return {"wrist": self.times[rows]}

    def stop(self, rows):
        self.stopped.append((self.clock(), rows.tolist()))


class Time:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def rig():
    clock = Time()
    robot = Robot(clock)
    peer = Peer(robot, local_pair()[0])
    peer._freshness = Freshness(robot, clock)
    return robot, peer, clock


def step(robot, peer, clock, rows=(0, 1)):
    clock.now += PERIOD_S
    rows = np.array(rows, np.int32)
    return peer.answer(Step(rows, np.zeros(len(rows), np.int64), True))


def test_frozen_timestamps_stop_within_the_age_limit(rig):
    """T13a."""
    robot, peer, clock = rig
    for _ in range(10):
        assert isinstance(step(*rig), Outcome)
    robot.frozen, last = {1}, robot.times[1]
    answers = [step(*rig) for _ in range(3)]
    assert [type(a) for a in answers] == [Outcome, Outcome, Fault]
    (when, rows), fault = robot.stopped[0], answers[-1]
    assert when - last <= MAX_AGE_S + 1e-9 and rows == [0, 1]
    assert (
        fault.code == "stale-frame"
        and "camera 'wrist' of row 1" in fault.text
        and "0.180 s ago" in fault.text
    )
    assert isinstance(step(*rig, rows=[0]), Outcome), "the other arm goes on"
    assert isinstance(peer.answer(Reset(np.array([1], np.int32), np.array([5]), [])), Fault)


def test_the_same_frame_with_fresh_timestamps_is_noticed(rig):
    """T13b."""
    robot, peer, clock = rig
    for _ in range(10):
        assert isinstance(step(*rig), Outcome)
    robot.stuck = {0}
    answers = [step(*rig) for _ in range(REPEATS - 1)]  # the last good frame is the first of them
    assert [type(a) for a in answers[:-1]] == [Outcome] * (REPEATS - 2)
    assert "camera 'wrist' of row 0 has shown the same frame 4 times" in answers[-1].text
    assert isinstance(step(*rig), Fault) and len(robot.stopped) == 2
    robot.stuck = set()
    assert isinstance(step(*rig), Outcome), "and recovery, too"


def test_no_time_of_a_frame_is_no_fresh_frame(rig):
    robot, peer, clock = rig
    robot.frame_times = lambda rows: {"wrist": np.full(len(rows), np.nan)}
    assert isinstance(step(*rig), Fault)


def test_without_limits_nothing_is_asked():
    robot = Robot(Time())
    robot.spec.observation["wrist"] = ArraySpec("uint8", (2, 2, 3))
    assert not Freshness(robot).needed
    with pytest.raises(StaleFrame):
        Freshness(Robot(lambda: 1e9), lambda: 2e9).check(
            np.array([0]), {"wrist": np.zeros((1, 2, 2, 3), np.uint8)}
        )


@pytest.mark.parametrize("wrong", [{"max_age_s": -1.0}, {"max_age_s": float("nan")}, {"frozen_after": 1}])
def test_limits_are_numbers_that_make_sense(wrong):
    with pytest.raises(SpecError, match="max_age_s"):
        ArraySpec("uint8", (2,), **wrong)
