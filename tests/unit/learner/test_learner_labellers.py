"""Labels of a data set: RECAP's and STEAM's numbers by hand, and what they tell apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from rollbus_core.datasets.episode import Episode
from rollbus_core.datasets.labels import Labels, read_labels, write_labels
from rollbus_core.datasets.reader import Dataset
from rollbus_core.datasets.writer import DatasetWriter
from rollbus_learner.labellers import recap, steam
from rollbus_learner.labellers._base import labels_of
from rollbus_wire.errors import ConfigError
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec

SPEC = EnvSpec(
    "line", {"obs": ArraySpec("float32", (1,))}, ActionSpec("continuous", (1,), low=[-1.0], high=[1.0]),
    has_success=True,
)  # fmt: skip


def episode(places, success=True, source=2, task=""):
    num = len(places)
    return Episode(
        {"obs": np.array(places, np.float32)[:, None]}, np.zeros((num, 1), np.float32),
        np.zeros(num, np.float32),
        np.full(num, source, np.uint8), terminated=True, final_obs={"obs": np.zeros(1, np.float32)},
        success=success, task=task,
    )  # fmt: skip


def test_returns_count_steps_and_are_normalised_per_task():
    config = recap.Config(failure_cost=7.0)
    good, bad, other = episode([0, 0, 0]), episode([0, 0], False), episode([0, 0], task="b")
    assert recap.rewards(good, config).tolist() == [-1, -1, 0] and recap.rewards(bad, config)[-1] == -7
    found = recap.returns([good, bad, other], config)
    # Raw: -2 -1 0 and -8 -7, of range 8; the other task has -1 0, of range 1.
    np.testing.assert_allclose(found[0], [-0.25, -0.125, 0.0])
    np.testing.assert_allclose(found[1], [-1.0, -0.875])
    np.testing.assert_allclose(found[2], [-1.0, 0.0])


def test_advantages_by_hand():
    returned = np.array([-0.5, -0.4, -0.3, 0.0])
    value = np.array([-0.6, -0.3, -0.35, -0.1])
    # t=0: -0.2 + V_2 - V_0; t=1: -0.4 + V_3 - V_1; then the return itself minus the value.
    np.testing.assert_allclose(recap.advantages(returned, value, 2), [0.05, -0.2, 0.05, 0.1], atol=1e-12)
    np.testing.assert_allclose(recap.advantages(returned, returned, 2), 0.0, atol=1e-12)


def test_bins_of_strides_have_no_zero():
    strides = np.array([-4, -3, -2, -1, 1, 2, 3, 4])
    assert steam.bin_of(strides, 4, 8).tolist() == list(range(8))
    assert steam.bin_of(strides, 4, 4).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    one_hot = torch.eye(4)
    assert steam.expected(one_hot).tolist() == [-1.0, -0.5, 0.5, 1.0]
    assert float(steam.expected(torch.full((4,), 0.25))) == 0.0


def test_labels_take_the_best_of_each_task_and_all_of_a_person():
    shown, person = episode([0] * 4), episode([0] * 2, source=3)
    found = labels_of([np.array([0.1, 0.4, 0.3, np.nan]), np.array([-1.0, -2.0])], [shown, person], 0.2)
    assert found[0].tolist() == [0, 1, 0, -1] and found[1].tolist() == [1, 1]
    with pytest.raises(ConfigError, match="every decision of task '' got the same label"):
        labels_of([np.zeros(4)], [shown], 0.3)
    with pytest.raises(ConfigError, match="no decision of task '' has a score"):
        labels_of([np.full(4, np.nan)], [shown], 0.3)


def walks(num=30):
    """Half walk to 1 in ten steps, half stay where they are and fail."""
    good = [episode(np.linspace(0, 1, 10)) for _ in range(num)]
    return good + [episode(np.full(10, 0.05 * (i % 20)), False, source=1) for i in range(num)]


@pytest.mark.parametrize(("module", "settings"), [(recap, {"horizon": 3}), (steam, {"stride": 3})])
def test_moving_on_is_better_than_staying(module, settings):
    config = module.Config(steps=100, width=16, good=0.4, **settings)
    episodes = walks()
    model = module.train(config, episodes, SPEC)
    labels = labels_of(module.score(config, model, episodes, SPEC), episodes, config.good)
    share = [np.mean(np.concatenate(part) == 1) for part in (labels[:30], labels[30:])]
    assert share[0] > share[1] + 0.3
    again = module.rebuild(config, model.state_dict(), SPEC)
    for one, other in zip(
        module.score(config, model, episodes, SPEC), module.score(config, again, episodes, SPEC)
    ):
        np.testing.assert_array_equal(one, other)


def test_steam_needs_demonstrations():
    with pytest.raises(ConfigError, match="steam learns from demonstrations"):
        steam.train(steam.Config(), [episode([0, 0], False, source=1)], SPEC)


def test_labels_belong_to_one_content(tmp_path: Path):
    def written(name, *episodes):
        with DatasetWriter(tmp_path / name, SPEC) as writer:
            for each in episodes:
                writer.add(each)
        return Dataset(tmp_path / name)

    data, other = written("a", episode([0, 1])), written("b", episode([1, 1]))
    labels = Labels({0: np.array([0.5, 0.1], np.float32)}, {0: np.array([1, 0], np.int8)})
    write_labels(tmp_path / "labels", labels, {"dataset": data.content()})
    found = read_labels(tmp_path / "labels", data)
    assert found.of(0, 2).tolist() == [1, 0] and found.content() == labels.content() and found.share() == 0.5
    with pytest.raises(ConfigError, match="are not of .*b as it is now"):
        read_labels(tmp_path / "labels", other)
    with pytest.raises(ConfigError, match="episode 0 has 3 frames, its labels 2"):
        found.of(0, 3)
    with pytest.raises(ConfigError, match="holds no labels"):
        read_labels(tmp_path, data)
