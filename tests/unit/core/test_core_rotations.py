"""Rotations: known answers, every pair of types, what cannot be read, and specs stated another way."""

from __future__ import annotations

import math
from typing import get_args

import numpy as np
import pytest

from rollbus_core.config.models import RotationType
from rollbus_core.rotations import Conventions, Restated, convert, restated
from rollbus_wire.errors import SpecError
from rollbus_wire.spec import ROTATIONS, ActionSpec, ArraySpec, EnvSpec, RotationSpec

TYPES = list(ROTATIONS)
PI = math.pi


def matrix_of(quaternion: np.ndarray) -> np.ndarray:
    """By the textbook's formula, from x, y, z, w."""
    x, y, z, w = quaternion
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )


def quaternions(count: int, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).normal(size=(count, 4))
    return values / np.linalg.norm(values, axis=1, keepdims=True)


def angle(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Between rotations as matrices [R, 9]; by the distance, which is exact for small angles."""
    return 2 * np.arcsin(np.minimum(np.linalg.norm(a - b, axis=1) / math.sqrt(8), 1))


def test_settings_know_every_type() -> None:
    assert list(get_args(RotationType)) == TYPES


def test_t7_the_tag_decides() -> None:
    """(0, 0, 0, 1) is no rotation with w last, half a turn about z with w first; untagged it is refused."""
    four = np.array([0.0, 0.0, 0.0, 1.0])
    assert convert(four, "quat_xyzw", "rotvec").tolist() == [0, 0, 0]
    assert np.allclose(convert(four, "quat_wxyz", "rotvec"), [0, 0, PI])
    assert convert(four, "quat_wxyz", "quat_xyzw").tolist() == [0, 0, 1, 0]
    for untagged in ("quat", "quaternion", ""):
        with pytest.raises(SpecError, match="do not say which one is w"):
            convert(four, untagged, "rotvec")
        with pytest.raises(SpecError, match="quat_xyzw, quat_wxyz"):
            RotationSpec(untagged)
    with pytest.raises(SpecError, match=r"rotvec has 3 numbers, not an array \[4\]"):
        convert(four, "rotvec", "matrix")


@pytest.mark.parametrize("given", TYPES)
@pytest.mark.parametrize("wanted", TYPES)
def test_there_and_back(given: str, wanted: str) -> None:
    """A thousand random rotations are the same within 1e-6 rad after any two conversions."""
    matrices = np.stack([matrix_of(q).ravel() for q in quaternions(1000)])
    values = convert(matrices, "matrix", given)
    back = convert(convert(values, given, wanted), wanted, given)
    assert angle(convert(back, given, "matrix"), matrices).max() < 1e-6


def test_against_the_formula() -> None:
    for quaternion in quaternions(50, 1):
        expected = matrix_of(quaternion)
        assert np.allclose(convert(quaternion, "quat_xyzw", "matrix"), expected.ravel(), atol=1e-12)
        assert np.allclose(
            convert(quaternion[[3, 0, 1, 2]], "quat_wxyz", "matrix"), expected.ravel(), atol=1e-12
        )
        assert np.allclose(convert(quaternion, "quat_xyzw", "rot6d"), expected.T.ravel()[:6], atol=1e-12)
        assert np.allclose(
            convert(expected.T.ravel()[:6] * 3, "rot6d", "matrix"), expected.ravel(), atol=1e-12
        )


def test_t8_rotation_vectors_are_no_euler_angles() -> None:
    about_z = np.array([0.0, 0.0, 0.3])
    vector, euler = (convert(about_z, t, "matrix") for t in ("rotvec", "euler_xyz_extrinsic"))
    assert np.allclose(vector, euler, atol=1e-12)
    tilted = np.array([0.3, 0.2, 0.1])
    quaternion = convert(tilted, "rotvec", "quat_xyzw")
    assert np.allclose(quaternion, [0.149127, 0.099418, 0.049709, 0.982551], atol=1e-6)
    both = [convert(tilted[None], t, "matrix") for t in ("rotvec", "euler_xyz_extrinsic")]
    assert angle(*both)[0] == pytest.approx(0.0354, abs=1e-4)


def test_extrinsic_angles_are_intrinsic_ones_backwards() -> None:
    """Rz(c) Ry(b) Rx(a), and Rx(a) Ry(b) Rz(c)."""
    a, b, c = 0.3, -0.4, 1.1
    turns = [np.array(v) for v in ([a, 0, 0], [0, b, 0], [0, 0, c])]
    x, y, z = (convert(v, "rotvec", "matrix").reshape(3, 3) for v in turns)
    angles = np.array([a, b, c])
    assert np.allclose(convert(angles, "euler_xyz_extrinsic", "matrix"), (z @ y @ x).ravel())
    assert np.allclose(convert(angles, "euler_xyz_intrinsic", "matrix"), (x @ y @ z).ravel())


@pytest.mark.parametrize("given", TYPES)
def test_nothing_to_read_is_no_rotation_and_not_a_number_stays(given: str) -> None:
    values = np.zeros((3, len(ROTATIONS[given])), np.float32)
    values[1, 0] = np.nan
    values[2] = convert(np.array([0, 0, 1.0]), "rotvec", given)
    vectors = convert(values, given, "rotvec")
    assert vectors.dtype == np.float32 and vectors[0].tolist() == [0, 0, 0]
    assert np.isnan(convert(values, given, "quat_xyzw")[1]).all() or given == "quat_xyzw"
    assert np.allclose(vectors[2], [0, 0, 1], atol=1e-6)
    assert convert(values[:0], given, "matrix").shape == (0, 9)


def test_six_numbers_of_no_lengths_and_parallel_ones() -> None:
    parallel = np.array([[1.0, 2, 3, 2, 4, 6], [0, 0, 0, 0, 1, 0]])
    assert np.allclose(convert(parallel, "rot6d", "rotvec"), 0)


POSE = ArraySpec(
    "float32", (8,), -5.0, 5.0, names=["px", "py", "pz", "qw", "qx", "qy", "qz", "grip"],
    rotations=[RotationSpec("quat_wxyz", 3)],
)  # fmt: skip
TURN = ActionSpec(
    "continuous", (4,), low=[-PI, -PI / 2, -PI, 0.0], high=[PI, PI / 2, PI, 0.5],
    rotations=[RotationSpec("euler_xyz_extrinsic", 0)],
)  # fmt: skip


def test_a_spec_stated_another_way() -> None:
    seen = restated(POSE, ["rot6d"])
    assert seen.shape == (10,) and seen.rotations == [RotationSpec("rot6d", 3)]
    assert seen.names == ["px", "py", "pz", "xx", "yx", "zx", "xy", "yy", "zy", "grip"]
    assert (seen.low, seen.high) == (None, None)
    assert restated(POSE, ["quat_wxyz"]) == POSE
    action = restated(TURN, ["quat_xyzw"])
    assert action.shape == (5,) and list(action.high) == [1, 1, 1, 1, 0.5] and action.low[4] == 0.0
    assert restated(TURN, ["rotvec"]).high == [PI, PI, PI, 0.5]


def test_two_rotations_in_one_array() -> None:
    arms = ArraySpec(
        "float32", (9,), rotations=[RotationSpec("rotvec", 0), RotationSpec("quat_xyzw", 4)],
        names=list("abcdefghi"),
    )  # fmt: skip
    seen = restated(arms, ["quat_xyzw", "rotvec"])
    assert seen.rotations == [RotationSpec("quat_xyzw", 0), RotationSpec("rotvec", 5)]
    values = np.array([[0, 0, PI / 2, 7, 0, 0, math.sqrt(0.5), math.sqrt(0.5), 9]], np.float32)
    s = math.sqrt(0.5)
    assert np.allclose(Restated(arms, seen)(values), [[0, 0, s, s, 7, 0, 0, PI / 2, 9]], atol=1e-6)


def test_an_image_of_vectors_has_no_room_for_more() -> None:
    table = ArraySpec(
        "float32", (2, 4), rotations=[RotationSpec("quat_xyzw", 0), RotationSpec("quat_xyzw", 4)]
    )
    assert restated(table, ["quat_wxyz"] * 2).shape == (2, 4)
    with pytest.raises(SpecError, match="has no place for rotvec, rotvec; make it a vector"):
        restated(table, ["rotvec"] * 2)


def spec(**observation: ArraySpec) -> EnvSpec:
    return EnvSpec("arm", observation or {"pose": POSE}, TURN)


def test_conventions_see_and_execute() -> None:
    conventions = Conventions(spec(), {"pose": "rotvec", "action": "rotvec"})
    assert conventions.seen.observation["pose"].shape == (7,) and conventions.own == spec()
    raw = np.array([[1, 2, 3, math.cos(0.15), 0, 0, math.sin(0.15), 0.4]], np.float32)
    assert np.allclose(conventions.observed({"pose": raw})["pose"], [[1, 2, 3, 0, 0, 0.3, 0.4]], atol=1e-6)
    executed = conventions.executed(np.array([[0, 0, 0.3, 0.5], [0.3, 0.2, 0.1, 0.0]], np.float32))
    assert executed.dtype == np.float32 and np.allclose(executed[0], [0, 0, 0.3, 0.5], atol=1e-6)
    assert np.allclose(convert(executed[1, :3], "euler_xyz_extrinsic", "rotvec"), [0.3, 0.2, 0.1], atol=1e-6)
    assert not np.allclose(executed[1, :3], [0.3, 0.2, 0.1], atol=1e-3)


def test_nothing_wanted_changes_nothing() -> None:
    conventions = Conventions(spec(), {})
    obs, action = {"pose": np.zeros((1, 8), np.float32)}, np.zeros((1, 4), np.float32)
    assert conventions.seen is conventions.own
    assert conventions.observed(obs) is obs and conventions.executed(action) is action


def test_the_experts_action_is_stated_like_the_policys() -> None:
    expert = spec(pose=POSE, expert_action=ArraySpec("float32", (4,)))
    conventions = Conventions(expert, {"action": "rot6d"})
    assert conventions.seen.observation["expert_action"].shape == conventions.seen.action.shape == (7,)
    obs = {"pose": np.zeros((1, 8), np.float32), "expert_action": np.array([[0, 0, PI / 2, 0.3]], np.float32)}
    told = conventions.observed(obs)["expert_action"]
    assert np.allclose(told, [[0, 1, 0, -1, 0, 0, 0.3]], atol=1e-6)
    assert np.allclose(conventions.executed(told), [[0, 0, PI / 2, 0.3]], atol=1e-6)


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ({"camera": "rotvec"}, "'camera', of which arm states no rotation; it states those of pose, action"),
        ({"plain": "rotvec"}, "'plain', of which arm states no rotation"),
        ({"pose": "quat"}, "rotation type 'quat'; one of quat_xyzw"),
    ],
)
def test_refusals(wanted: dict[str, str], text: str) -> None:
    with pytest.raises(SpecError, match=text):
        Conventions(spec(pose=POSE, plain=ArraySpec("float32", (4,))), wanted)


def test_a_part_of_all_rotations_cannot_be_stated_another_way() -> None:
    small = ActionSpec(
        "continuous", (3,), low=[-0.3] * 3, high=[0.3] * 3, rotations=[RotationSpec("euler_xyz_extrinsic")]
    )
    with pytest.raises(SpecError, match=r"element 0 of the action.*\[-0.3, 0.3\].*leave action out"):
        Conventions(EnvSpec("arm", {"pose": POSE}, small), {"action": "rotvec"})


@pytest.mark.parametrize(
    ("dtype", "size", "rotations"),
    [
        ("float32", 4, [RotationSpec("quat_xyzw", 1)]),
        ("float32", 6, [RotationSpec("rotvec", 0), RotationSpec("rotvec", 2)]),
        ("int64", 3, [RotationSpec("rotvec", 0)]),
    ],
)
def test_rotations_are_floats_of_their_own(dtype: str, size: int, rotations: list[RotationSpec]) -> None:
    with pytest.raises(SpecError, match="floats of its own"):
        ArraySpec(dtype, (size,), rotations=rotations)


def test_they_travel_with_the_spec() -> None:
    assert EnvSpec.from_data(spec().to_data()) == spec()
    older = spec().to_data()
    del older["observation"]["pose"]["rotations"], older["action"]["rotations"]
    assert EnvSpec.from_data(older).action.rotations == []
    older["action"]["rotations"] = [{"type": "quat", "start": 0}]
    with pytest.raises(SpecError, match="which one is w"):
        EnvSpec.from_data(older)
