"""Rows of Gymnasium-style environments, and what actions are refused."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from wire_examples import (
    Box,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Spaces,
    TimeLimit,
    Walk,
    Wrapper,
)

from rollbus_wire.env import RowFailed, Rows, as_env, made_by, validate_actions
from rollbus_wire.errors import SpecError
from rollbus_wire.spaces import Observations, action_spec
from rollbus_wire.spec import ActionSpec

ROWS = np.arange(2, dtype=np.int32)
SEEDS = np.array([5, 6], np.int64)


def test_rows_step_by_step():
    env = Rows([Walk(), Walk()])
    obs = env.reset(ROWS, SEEDS, [])
    places = [np.random.RandomState(seed).uniform(-0.1, 0.1) for seed in (5, 6)]
    expected = np.array([[places[0], 0], [places[1], 0]], np.float32)
    np.testing.assert_array_equal(obs["obs"], expected)
    assert obs["obs"].dtype == np.float32
    result = env.step(ROWS, np.array([[1.0], [-1.0]], np.float32), True)
    np.testing.assert_allclose(result.reward, [places[0] + 1.5, places[1] - 0.5], rtol=1e-6)
    np.testing.assert_array_equal(result.obs["obs"][:, 1], [1, 1])
    result = env.step(ROWS, np.ones((2, 1), np.float32), True)
    np.testing.assert_array_equal(result.terminated, [places[0] + 3 > 3, False])
    np.testing.assert_array_equal(result.success, result.terminated)
    assert result.truncated.dtype == np.bool_ and not result.truncated.any()


def test_rows_in_any_order_and_alone():
    env, single = Rows([Walk(), Walk()]), Rows([Walk()])
    env.reset(ROWS, SEEDS, [])
    single.reset(ROWS[:1], SEEDS[1:], [])
    back = env.step(ROWS[::-1], np.array([[0.5], [-0.5]], np.float32), True)
    alone = single.step(ROWS[:1], np.array([[0.5]], np.float32), True)
    np.testing.assert_array_equal(back.obs["obs"][0], alone.obs["obs"][0])
    again = env.step(ROWS[1:], np.array([[0.25]], np.float32), True)
    np.testing.assert_array_equal(again.obs["obs"][0, 1], 2)


def test_an_unobserved_step_can_be_observed_late():
    env = Rows([Walk()])
    env.reset(ROWS[:1], SEEDS[:1], [])
    result = env.step(ROWS[:1], np.array([[1.0]], np.float32), False)
    assert result.obs is None
    assert env.observe(ROWS[:1])["obs"][0, 1] == 1


def test_options_reach_their_row():
    env = Rows([Walk(), Walk()])
    obs = env.reset(ROWS, SEEDS, [None, {"place": 2.0}])
    assert obs["obs"][0, 0] < 1 < obs["obs"][1, 0]


def test_the_spec_of_rows():
    spec = Rows([Walk()]).spec
    assert spec.name == "Walk" and spec.has_success and spec.internal_truncation
    assert spec.time_limit == 0 and spec.late_observe == "exact" and spec.seeding == "row"
    assert spec.action == ActionSpec("continuous", (1,), low=[-1.0], high=[1.0])
    assert (spec.observation["obs"].low, spec.observation["obs"].high) == (-100.0, 100.0)


@pytest.mark.parametrize("wrap", [lambda e: e, Wrapper, lambda e: Wrapper(Wrapper(e))])
def test_the_time_limit_goes_to_the_hub(wrap):
    env = Rows([wrap(TimeLimit(Wrapper(Walk()), 2))])
    assert env.spec.time_limit == 2 and not env.spec.internal_truncation
    env.reset(ROWS[:1], SEEDS[:1], [])
    for _ in range(4):
        assert not env.step(ROWS[:1], np.array([[-1.0]], np.float32), False).truncated[0]


def test_success_is_only_given_where_it_is_declared():
    env = Rows([Walk()], has_success=False)
    env.reset(ROWS[:1], SEEDS[:1], [{"place": 2.9}])
    with pytest.warns(UserWarning, match="has_success"):
        assert env.step(ROWS[:1], np.array([[1.0]], np.float32), False).success is None


def test_maps_images_and_classes():
    raw = Spaces()
    env = Rows([raw])
    spec = env.spec.observation
    assert sorted(spec) == ["arm/joint", "arm/mode", "camera"]
    assert (spec["camera"].dtype, spec["camera"].layout, spec["camera"].channels) == ("uint8", "HWC", "RGB")
    assert (spec["arm/mode"].shape, spec["arm/mode"].high, spec["arm/mode"].layout) == ((), 2.0, "onehot")
    obs = env.reset(ROWS[:1], SEEDS[:1], [])
    assert obs["arm/mode"].tolist() == [2] and obs["camera"].shape == (1, 4, 5, 3)
    np.testing.assert_array_equal(obs["arm/joint"], np.array([[0.1, -0.2]], np.float32))
    env.step(ROWS[:1], np.array([0]), True)
    env.step(ROWS[:1], np.array([2]), True)
    assert raw.given == [-1, 1] and all(type(a) is int for a in raw.given)


def test_arrays_are_given_away():
    env = Rows([Walk()])
    first = env.reset(ROWS[:1], SEEDS[:1], [])["obs"]
    before = first.copy()
    second = env.step(ROWS[:1], np.array([[1.0]], np.float32), True).obs["obs"]
    np.testing.assert_array_equal(first, before)
    assert not np.shares_memory(first, second)


def test_an_observation_of_another_shape_is_refused():
    raw = Walk()
    raw.observation = lambda: np.zeros(1)
    line = Walk.reset.__code__.co_firstlineno
    with pytest.raises(SpecError, match=r"\[1\].*\[2\], from reset\(\) of .*wire_examples.py:%d$" % line):
        Rows([raw]).reset(ROWS[:1], SEEDS[:1], [])
    raw = Walk()
    env = Rows([raw])
    env.reset(ROWS[:1], SEEDS[:1], [])
    raw.observation = lambda: [[1.0], [1.0, 2.0]]  # numpy makes no array of it
    line = Walk.step.__code__.co_firstlineno
    told = r"not what its space says: ValueError: .*, from step\(\) of .*wire_examples.py:%d$" % line
    with pytest.raises(SpecError, match=told):
        env.step(ROWS[:1], np.ones((1, 1), np.float32), True)


def test_a_failing_row_is_named():
    env = Rows([Walk(), Walk()])
    env.reset(ROWS, SEEDS, [])
    env.envs[1].place = "broken"
    first = env.envs[0].place
    result = env.step(ROWS, np.ones((2, 1), np.float32), True)
    assert list(result.failed) == [1] and str(result.failed[1]).startswith("row 1 failed in step: TypeError")
    assert "in step() of" in str(result.failed[1]) and "wire_examples.py:" in str(result.failed[1])
    assert result.reward[0] == result.reward[0] and result.reward[1] != result.reward[1]
    assert env.envs[0].place == first + 1.5 and not result.terminated.any() and not result.truncated.any()
    with pytest.raises(RowFailed, match="row 1 failed in step: TypeError"):
        env.step(ROWS[1:], np.ones((1, 1), np.float32), True)


def test_an_environment_that_resets_itself_is_refused():
    raw = Walk()
    raw.step = lambda action: (raw.observation(), 0.0, True, False, {"final_observation": 1})
    env = Rows([raw])
    env.reset(ROWS[:1], SEEDS[:1], [])
    with pytest.raises(SpecError, match="resets itself"):
        env.step(ROWS[:1], np.ones((1, 1), np.float32), True)


def test_what_can_be_served():
    batched = Rows([Walk(), Walk()])
    assert as_env(batched, 5) is batched
    assert as_env(lambda: batched, 2) is batched
    assert as_env(Walk, 3).num_rows == 3
    assert as_env(Walk()).num_rows == 1
    with pytest.raises(SpecError, match="function that makes one"):
        as_env(Walk(), 2)
    with pytest.raises(SpecError):
        as_env(3)
    with pytest.raises(SpecError):
        as_env(lambda: 3)
    with pytest.raises(SpecError):
        Rows([])


CONTINUOUS = ActionSpec("continuous", (2,), low=[-1, -0.1], high=[1, 0.1], names=["hip", "knee"])


def test_valid_actions_pass_unchanged():
    actions = np.array([[1, -0.1], [-1, 0.1]], np.float32)
    assert validate_actions(CONTINUOUS, actions) is actions
    assert validate_actions(CONTINUOUS, actions.astype(np.float64)).dtype == np.float32
    assert validate_actions(ActionSpec("discrete", num=[3]), np.array([0, 2], np.int8)).tolist() == [0, 2]
    many = ActionSpec("multi_discrete", (2,), num=[2, 5])
    assert validate_actions(many, np.array([[1, 4]])).tolist() == [[1, 4]]


@pytest.mark.parametrize(
    ("spec", "actions", "text"),
    [
        (CONTINUOUS, np.array([[0, 0], [0, 0.11]], np.float32), r"row 1 .*knee.*0.11.*\[-0.1, 0.1\]"),
        (CONTINUOUS, np.array([[np.nan, 0]], np.float32), "row 0 .*hip.*nan"),
        (CONTINUOUS, np.array([[0, -np.inf]], np.float32), "knee.*-inf"),
        (CONTINUOUS, np.zeros((2, 3), np.float32), r"\[2, 3\].*\[rows, 2\]"),
        (CONTINUOUS, np.zeros(2, np.float32), "shape"),
        (CONTINUOUS, np.zeros((1, 2), np.int64), "int64"),
        (ActionSpec("discrete", num=[3]), np.array([0, 3]), "row 1 .*3.*0 to 2"),
        (ActionSpec("discrete", num=[3]), np.array([-1]), "row 0 .*-1"),
        (ActionSpec("discrete", num=[3]), np.array([1.0]), "float64"),
        (ActionSpec("discrete", num=[3]), np.array(1), "shape"),
        (ActionSpec("discrete", num=[3]), np.array([[1]]), "shape"),
        (ActionSpec("multi_discrete", (2,), num=[2, 5]), np.array([[1, 4], [2, 4]]), r"row 1 .*\[0\] is 2"),
        (ActionSpec("continuous", (1,), low=[-np.inf], high=[np.inf]), np.array([[np.inf]]), "inf"),
    ],
)
def test_bad_actions_are_refused_with_row_value_and_bound(spec, actions, text):
    with pytest.raises(SpecError, match=text):
        validate_actions(spec, actions)


def test_action_spaces():
    spec, give = action_spec(MultiDiscrete([2, 3]))
    assert spec == ActionSpec("multi_discrete", (2,), num=[2, 3])
    assert give(np.array([[1, 2]])).tolist() == [[1, 2]]
    spec, give = action_spec(MultiBinary(3))
    assert spec.num == [2, 2, 2]
    spec, give = action_spec(Discrete(4, start=2))
    assert spec.num == [4] and give(np.array([0, 3])) == [2, 5]
    with pytest.raises(SpecError):
        action_spec(Box(0, 5, (2,), np.int64))
    with pytest.raises(SpecError):
        action_spec(object())


def test_a_float64_bound_is_never_passed_by_rounding():
    spec, give = action_spec(Box(-0.1, 0.1, (1,), np.float64))
    given = give(validate_actions(spec, np.array([[0.1], [-0.1]], np.float32)))
    assert given.dtype == np.float64 and given.tolist() == [[0.1], [-0.1]]


def test_channels_first_images_and_odd_observations():
    specs = Observations(Box(0, 255, (3, 8, 8), np.uint8)).specs
    assert specs["obs"].layout == "CHW"
    assert Observations(MultiBinary(4)).specs["obs"].dtype == "int8"
    assert Observations(MultiDiscrete([2, 5])).specs["obs"].high == 4
    with pytest.raises(SpecError, match="Box, Discrete"):
        Observations(object())


def test_a_reset_of_the_old_gym_is_named():
    class Old(Walk):
        def reset(self):
            return self.observation()

    class NoInfo(Walk):
        def reset(self, seed=None, options=None):
            return self.observation()

    with pytest.raises(SpecError, match=r"Old has another reset\(\).*seed=None, options=None"):
        Rows([Old()])
    with pytest.raises(SpecError, match=r"NoInfo has another reset\(\).*returns \(observation, info\)"):
        Rows([NoInfo()]).reset(ROWS[:1], SEEDS[:1], [])


@pytest.mark.parametrize(
    "answer, told",
    [
        (
            (0, 1.0, True, {}),
            r"another step\(\) than Gymnasium's: it returned 4 values, where",
        ),
        (None, "it returned a NoneType, where"),
        ((np.zeros(2), "much", False, False, {}), "step.. returned a reward that is none: .*much"),
        (
            (np.zeros(1), 0.0, np.zeros(2), False, {}),
            "returned a terminated that is none: .*ambiguous",
        ),
        ((np.zeros(1), 0.0, True, False, None), "step.. returned None as info; a dict is due"),
    ],
)
def test_a_step_of_another_form_is_named_with_its_place(answer, told):
    raw = [Walk(), Walk()]
    env = Rows(raw, has_success=True)
    env.reset(ROWS, SEEDS, [])
    raw[1].__class__ = type("Old", (Walk,), {"step": lambda self, action: answer})
    env._steps = [each.step for each in raw]
    with pytest.raises(SpecError, match=r"row 1 failed in step: Old, <lambda>\(\) of .*" + told):
        env.step(ROWS, np.ones((2, 1), np.float32), True)


def test_what_an_environment_lacks_and_what_it_was_given_by_mistake_is_said():
    class Arm(Walk):
        def __init__(self, port):
            Walk.__init__(self)
            self.port = port

    with pytest.raises(
        SpecError, match="Arm has a required argument 'port', so it was given .* 4, and made one"
    ):
        made_by(Arm, 4)
    assert made_by(functools.partial(Arm, port="/dev/arm"), 4).num_rows == 4

    class Half:
        def reset(self):
            pass

    with pytest.raises(SpecError, match=r"a Half is no environment: it has no step\(\)"):
        made_by(Half, 1)
