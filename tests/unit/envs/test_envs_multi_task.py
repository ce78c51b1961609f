"""Several environments as one: division, padding, limits, success, and what is refused."""

# ruff: noqa: E501

from __future__ import annotations

import re

import numpy as np
import pytest

from rollbus_envs import multi_task, toy
from rollbus_wire.check import check_env
from rollbus_wire.errors import ConfigError
from rollbus_wire.spec import EnvSpec

REACH_2 = {"env": {"name": "toy", "kind": "continuous", "dims": 2}}
REACH_4 = {"env": {"name": "toy", "kind": "continuous", "dims": 4, "length": 6}}


def make(num_rows: int, tell: str = "id", **tasks):
    return multi_task.make(multi_task.Config(tasks=tasks, tell=tell), num_rows)


@pytest.mark.parametrize(
    "tasks",
    [
        {"two": REACH_2, "four": REACH_4},
        {"chain": {"env": {"name": "toy", "kind": "discrete"}}, "cue": {"env": {"name": "toy", "kind": "dict"}}},
        {"near": REACH_2, "sparse": {"env": {"name": "toy", "kind": "sparse_reach", "dims": 3}}},
        {"two": {"env": {**REACH_2["env"], "expert": True}}, "four": {"env": {**REACH_4["env"], "expert": True}}},
    ],
    ids=["sizes", "keys and choices", "success rules", "experts"],
)  # fmt: skip
def test_it_keeps_the_contract(tasks):
    report = check_env(lambda num_rows: make(num_rows, **tasks), num_rows=5, steps=60)
    assert report.ok, str(report)
    assert "state can be restored" in report.passed
    spec = make(2, **tasks).spec
    assert EnvSpec.from_data(spec.to_data()) == spec


@pytest.mark.parametrize(
    ("weights", "rows", "counts"),
    [([1, 1], 8, [4, 4]), ([1, 2], 9, [3, 6]), ([1, 2], 32, [11, 21]), ([1, 1000], 4, [1, 3]), ([5, 1, 1], 3, [1, 1, 1])],
)  # fmt: skip
def test_rows_are_divided_by_weight_and_each_task_gets_one(weights, rows, counts):
    assert multi_task.divide(weights, rows) == counts


def test_too_few_rows_are_refused():
    with pytest.raises(ConfigError, match="1 rows for 2 tasks"):
        make(1, a=REACH_2, b=REACH_4)


def test_each_row_is_its_task_and_the_rest_is_padding():
    """Row by row the same as the task alone, elements by name, actions beyond a body's dropped."""
    env = make(4, two=REACH_2, four=REACH_4)
    alone = [toy.make(toy.Config(kind="continuous", dims=d, length=n), 2) for d, n in ((2, 0), (4, 6))]
    rows, seeds = np.arange(4, dtype=np.int32), np.array([3, 4, 5, 6])
    obs = env.reset(rows, seeds, [])
    names = env.spec.observation["obs"].names
    assert names == ["place_0", "place_1", "goal_0", "goal_1", "place_2", "place_3", "goal_2", "goal_3"]
    actions = np.random.default_rng(0).uniform(-2, 2, (6, 4, 4)).astype(np.float32)
    own = [
        one.reset(np.arange(2, dtype=np.int32), seeds[2 * i : 2 * i + 2], [])["obs"]
        for i, one in enumerate(alone)
    ]
    for t in range(6):
        assert (obs["task"] == [0, 0, 1, 1]).all()
        assert (obs["obs"][:2, :4] == own[0]).all() and not obs["obs"][:2, 4:].any()
        places = [names.index(name) for name in alone[1].spec.observation["obs"].names]
        assert (obs["obs"][2:][:, places] == own[1]).all()
        found = env.step(rows, actions[t], True)
        expected = [one.step(np.arange(2, dtype=np.int32), actions[t, 2 * i : 2 * i + 2, :d], True)
                    for i, (one, d) in enumerate(zip(alone, (2, 4)))]  # fmt: skip
        obs, own = found.obs, [each.obs["obs"] for each in expected]
        assert (found.reward == np.concatenate([each.reward for each in expected])).all()
        assert (found.success == np.concatenate([each.success for each in expected])).all()
    # Only the second task's limit of 6 is reached.
    assert env.spec.time_limit == 0 and env.spec.internal_truncation
    assert found.truncated.tolist() == [False, False, True, True]


def test_bounds_that_differ_are_scaled_and_others_kept():
    near = {"env": {"name": "gymnasium", "id": "Pendulum-v1"}}
    far = {"env": {"name": "gymnasium", "id": "MountainCarContinuous-v0"}}
    env = make(2, pendulum=near, car=far)
    assert (env.spec.action.low, env.spec.action.high) == ([-1.0], [1.0])
    (pendulum, car) = env._union.actions
    ends = np.array([[-1.0], [0.5]], np.float32)
    assert pendulum.to_own(ends).tolist() == [[-2.0], [1.0]] and car.to_own(ends).tolist() == ends.tolist()
    assert pendulum.to_union(pendulum.to_own(ends)).tolist() == ends.tolist()
    env.close()


def test_instructions_are_bytes_of_a_row():
    two, four = REACH_2 | {"instruction": "reach"}, REACH_4 | {"instruction": "reach far"}
    env = make(3, tell="instruction", two=two, four=four)
    obs = env.reset(np.arange(3, dtype=np.int32), np.arange(3), [])
    assert [bytes(row).rstrip(b"\0").decode() for row in obs["instruction"]] == [
        "reach",
        "reach",
        "reach far",
    ]
    assert env.spec.group("policy") == ["instruction", "obs"]


CHAIN = {"env": {"name": "toy", "kind": "discrete"}}


@pytest.mark.parametrize(
    ("tasks", "tell", "words"),
    [
        ({}, "id", "env.tasks is empty"),
        ({"a": {"env": {"kind": "lane"}}}, "id", "env.tasks.a.env has no name"),
        ({"a": {**REACH_2, "wieght": 2}}, "id", "env.tasks.a is .*may have weight and instruction"),
        ({"a": {**REACH_2, "weight": 0}}, "id", "env.tasks.a.weight is 0; a number above 0"),
        ({"a": {"env": {"name": "tyo"}}}, "id", "env.tasks.a.env.name: 'tyo' is not one of.*did you mean 'toy'"),
        ({"a": {"env": {"name": "toy", "dim": 2}}}, "id", "env.tasks.a.env.dim: no such setting; toy has kind"),
        ({"a": {"env": {"name": "toy", "dims": "2"}}}, "id", "env.tasks.a.env.dims is '2'; it is of type int"),
        ({"a b": REACH_2}, "id", "'a b' is no name of a task"),
        ({"a": REACH_2}, "words", "env.tell 'words' is not one of: id, instruction, both, nothing"),
        ({"a": REACH_2}, "both", "env.tasks.a.instruction is empty"),
        ({"a": {"env": {"name": "multi_task"}}}, "id", "tasks within tasks"),
    ],
)  # fmt: skip
def test_settings_that_are_wrong_are_said_before_anything_is_made(tasks, tell, words):
    config = multi_task.Config(tasks=tasks, tell=tell)
    assert re.search(words, multi_task.problem(config)), multi_task.problem(config)


def test_tasks_that_do_not_go_together_are_refused():
    with pytest.raises(ConfigError, match="actions have kind discrete a, continuous b"):
        make(2, a=CHAIN, b=REACH_2)
    image = [{"env": {"name": "toy", "kind": "image", "size": size}} for size in (16, 8)]
    with pytest.raises(ConfigError, match="observation 'image' has shape"):
        make(2, a=image[0], b=image[1])
    expert = {"env": {**REACH_2["env"], "expert": True}}
    with pytest.raises(ConfigError, match="tasks a have an expert, b have none"):
        make(2, a=expert, b=REACH_4)
