"""Data sets whose rotations are stated in another way than the environment's, and those that do not say."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from datasets_kit import write

from rollbus_core.datasets.episode import Episode
from rollbus_core.datasets.fit import FittedDataset
from rollbus_core.datasets.reader import Dataset
from rollbus_wire.errors import ConfigError
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec, with_rotations

PI, S = math.pi, math.sqrt(0.5)
#: Position and quaternion; the action is a quaternion and a gripper.
ARM = EnvSpec(
    "arm",
    {"pose": ArraySpec("float32", (5,))},
    ActionSpec("continuous", (5,), low=[-1.0] * 5, high=[1.0] * 5),
)
POSE = np.array([[7, 0, 0, S, S]], np.float32)


def arm(pose: str, action: str) -> EnvSpec:
    return with_rotations(ARM, {"pose": [(pose, 1)], "action": [(action, 0)]})


def recorded(folder: Path, spec: EnvSpec) -> Dataset:
    """One decision: about z by a quarter, with w last; the hand closes."""
    action = np.array([[0, 0, S, S, 0.5]], np.float32)
    write(
        folder,
        [
            Episode(
                {"pose": POSE},
                action,
                np.zeros(1, np.float32),
                np.zeros(1, np.uint8),
                terminated=True,
                truncated=False,
                final_obs={"pose": POSE[0]},
                success=None,
                seed=1,
                task="",
            )  # fmt: skip
        ],
        spec,
    )
    return Dataset(folder)


def only(fitted: FittedDataset) -> Episode:
    ((_, episode),) = fitted.episodes([0])
    return episode


def test_what_the_data_set_says_is_converted(tmp_path: Path) -> None:
    dataset = recorded(tmp_path / "d", arm("quat_xyzw", "quat_xyzw"))
    wanted = with_rotations(
        EnvSpec(
            "arm", {"pose": ArraySpec("float32", (4,))},
            ActionSpec("continuous", (5,), low=[-1.0] * 5, high=[1.0] * 5),
        ),
        {"pose": [("rotvec", 1)], "action": [("quat_wxyz", 0)]},
    )  # fmt: skip
    episode = only(FittedDataset(dataset, wanted))
    assert episode.obs["pose"].dtype == np.float32
    assert np.allclose(episode.obs["pose"], [[7, 0, 0, PI / 2]], atol=1e-6)
    assert episode.final_obs is not None and np.allclose(
        episode.final_obs["pose"], [7, 0, 0, PI / 2], atol=1e-6
    )
    assert np.allclose(episode.action, [[S, 0, 0, S, 0.5]], atol=1e-6)


def test_the_same_statement_keeps_every_bit(tmp_path: Path) -> None:
    spec = arm("quat_xyzw", "quat_xyzw")
    assert (only(FittedDataset(recorded(tmp_path / "d", spec), spec)).obs["pose"] == POSE).all()


def test_nobody_guesses_where_w_is(tmp_path: Path) -> None:
    """A data set of somebody else has four numbers; the recipe must say what they are."""
    dataset = recorded(tmp_path / "d", ARM)
    spec = arm("quat_xyzw", "quat_wxyz")
    with pytest.raises(ConfigError) as caught:
        FittedDataset(dataset, spec)
    assert "elements 1 to 4 of pose are a rotation (quat_xyzw), and nobody says how" in str(caught.value)
    assert "elements 0 to 3 of action" in str(caught.value)
    said = {"pose": "quat_xyzw", "action": "quat_xyzw"}
    episode = only(FittedDataset(dataset, spec, rotations=said))
    assert (episode.obs["pose"] == POSE).all() and np.allclose(episode.action, [[S, 0, 0, S, 0.5]], atol=1e-6)
    with pytest.raises(ConfigError, match="pose has shape"):
        FittedDataset(dataset, spec, rotations={**said, "pose": "rotvec"})


def test_a_recipe_cannot_contradict_the_data_set(tmp_path: Path) -> None:
    dataset = recorded(tmp_path / "d", arm("quat_xyzw", "quat_xyzw"))
    with pytest.raises(ConfigError, match="pose has quat_xyzw, the data set says, not quat_wxyz"):
        FittedDataset(dataset, arm("rotvec", "rotvec"), rotations={"pose": "quat_wxyz"})


def test_what_is_out_of_the_actions_bounds_afterwards_is_refused(tmp_path: Path) -> None:
    dataset = recorded(tmp_path / "d", arm("quat_xyzw", "quat_xyzw"))
    action = ActionSpec("continuous", (4,), low=[-1.0] * 4, high=[1.0] * 4)
    spec = with_rotations(
        EnvSpec("arm", ARM.observation, action), {"pose": [("quat_xyzw", 1)], "action": [("rotvec", 0)]}
    )
    with pytest.raises(ConfigError, match="element 2 of action is 1.57"):
        only(FittedDataset(dataset, spec))


def test_the_manifest_says_it(tmp_path: Path) -> None:
    recorded(tmp_path / "d", arm("quat_xyzw", "rotvec"))
    manifest = json.loads((tmp_path / "d" / "rollbus" / "manifest.json").read_text())
    assert manifest["spec"]["observation"]["pose"]["rotations"] == [{"type": "quat_xyzw", "start": 1}]
