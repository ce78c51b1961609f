"""The hub states rotations as the recipe wants them: what is seen, what is executed, what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hub_kit import Actor, Script, attached, make_hub, play

from rollbus_core.rotations import convert
from rollbus_simulator.hub import Hub
from rollbus_wire.env import StepResult
from rollbus_wire.errors import SpecError
from rollbus_wire.messages import Fault, Tick
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec, with_rotations

PI = math.pi


class Turning(Script):
    """Shows half its steps as a turn about z, quaternion with w first; is turned by Euler angles."""

    def __init__(self, num_rows: int) -> None:
        action = ActionSpec("continuous", (3,), low=[-PI] * 3, high=[PI] * 3)
        super().__init__(num_rows, action=action)
        spec = EnvSpec("turning", {"pose": ArraySpec("float32", (4,))}, action, time_limit=3)
        self.spec = with_rotations(spec, {"pose": [("quat_wxyz", 0)], "action": [("euler_xyz_extrinsic", 0)]})

    def frames(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        half = self.steps[rows] / 4
        zero = np.zeros(len(rows))
        return {"pose": np.stack([np.cos(half), zero, zero, np.sin(half)], 1).astype(np.float32)}


class Broken(Turning):
    def step(self, rows: np.ndarray, actions: np.ndarray, observe: bool) -> StepResult:
        result = super().step(rows, actions, True)
        assert result.obs is not None
        result.obs["pose"][:, 0] = np.nan
        return result


def turning_hub(env: type[Turning] = Turning, **rotations: str) -> tuple[Hub, Actor, list[Turning]]:
    made: list[Turning] = []

    def make(num_rows: int) -> Turning:
        made.append(env(num_rows))
        return made[-1]

    hub, (actor,) = make_hub(make, num_rows=2, rotations=rotations)
    answer = attached(hub, actor)
    assert answer.spec["action"]["rotations"][0]["type"] == rotations["action"]
    return hub, actor, made


def test_t8_what_is_declared_is_used() -> None:
    """A policy decides rotation vectors; the environment, that takes Euler angles, turns by them."""
    hub, actor, (env,) = turning_hub(pose="rotvec", action="rotvec")
    first = next(m for m in actor.got if isinstance(m, Tick))
    assert first.obs["pose"].tolist() == [[0, 0, 0]] * 2
    decided = np.array([[0.3, 0.2, 0.1], [0, 0, 0.3]], np.float32)
    actor.act(first, decided)
    hub.poll()
    (tick,) = actor.ticks()
    assert np.allclose(tick.obs["pose"], [[0, 0, 0.5]] * 2, atol=1e-6)
    executed = np.array([env.actions[0][0], env.actions[1][0]])
    assert np.allclose(executed[1], [0, 0, 0.3], atol=1e-6)
    assert np.allclose(convert(executed, "euler_xyz_extrinsic", "rotvec"), decided, atol=1e-6)
    assert np.abs(executed[0] - decided[0]).max() > 0.01


def test_the_last_observation_of_an_episode_too() -> None:
    hub, actor, _ = turning_hub(pose="rot6d", action="quat_xyzw")
    ticks = play(hub, actor, 4, value=[[0, 0, 0, 1.0]] * 2)
    end = ticks[3]
    assert end.final.tolist() == [0, 1]
    c, s = math.cos(1.5), math.sin(1.5)
    assert np.allclose(end.final_obs["pose"], [[c, s, 0, -s, c, 0]] * 2, atol=1e-6)
    assert np.allclose(end.obs["pose"], [[1, 0, 0, 0, 1, 0]] * 2)


def test_actions_keep_to_what_is_seen() -> None:
    hub, actor, (env,) = turning_hub(action="quat_xyzw")
    first = next(m for m in actor.got if isinstance(m, Tick))
    actor.act(first, np.array([[0, 0, 0, 1.5]] * 2, np.float32))
    hub.poll()
    (fault,) = [m for m in actor.read() if isinstance(m, Fault)]
    assert "1.5, allowed is [-1, 1]" in fault.text and not env.actions[0]


def test_what_is_no_number_is_a_failure_of_the_environment() -> None:
    hub, actor, _ = turning_hub(Broken, pose="rotvec", action="rotvec")
    actor.act(next(m for m in actor.got if isinstance(m, Tick)), np.zeros((2, 3), np.float32))
    hub.poll()
    assert hub.counters.non_finite == 2


def test_an_environment_without_such_a_rotation_is_refused() -> None:
    with pytest.raises(SpecError, match="'obs', of which script states no rotation"):
        make_hub(Script, rotations={"obs": "rotvec"})
