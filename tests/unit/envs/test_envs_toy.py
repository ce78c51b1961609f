"""Toys: known best returns against exhaustive search, and what each promises."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rollbus_envs import toy
from rollbus_envs._toy_control import goal_reached
from rollbus_wire.check import check_env
from rollbus_wire.errors import ConfigError, SpecError

ONE = np.zeros(1, np.int32)


def make(kind: str, num_rows: int = 1, **settings):
    return toy.make(toy.Config(kind=kind, **settings), num_rows)


def episode(env, seed: int, act, limit: int = 1000):
    """Rewards and success of one episode of row 0 with ``act(obs, t)``."""
    obs = {k: v[0] for k, v in env.reset(ONE, np.array([seed]), []).items()}
    rewards, success = [], []
    for t in range(env.spec.time_limit or limit):
        action = np.asarray(act(obs, t), env.spec.action.dtype)[None]
        result = env.step(ONE, action, True)
        obs = {k: v[0] for k, v in result.obs.items()}
        rewards.append(float(result.reward[0]))
        success.append(bool(result.success[0]))
        if result.terminated[0]:
            break
    return rewards, success


def best_return(env, seed: int, depth: int) -> float:
    """The best return over all action sequences, by search over saved states."""
    action = env.spec.action
    shapes = [range(n) for n in action.num]
    choices = [np.array(c if action.shape else c[0], np.int64) for c in itertools.product(*shapes)]

    def search(state: bytes, left: int) -> float:
        best = -np.inf
        for choice in choices:
            env.set_state(ONE, [state])
            result = env.step(ONE, choice[None], False)
            value = float(result.reward[0])
            if not result.terminated[0] and left > 1:
                value += search(env.get_state(ONE)[0], left - 1)
            best = max(best, value)
        return best

    env.reset(ONE, np.array([seed]), [])
    return search(env.get_state(ONE)[0], depth)


@pytest.mark.parametrize("kind", sorted(toy.KINDS))
def test_every_toy_keeps_the_contract(kind):
    report = check_env(lambda num_rows: make(kind, num_rows), num_rows=3, steps=60)
    assert report.ok, str(report)
    assert "state can be restored" in report.passed


@pytest.mark.parametrize("kind", sorted(toy.KINDS))
def test_a_row_depends_on_its_seed_alone(kind):
    many, one = make(kind, 5), make(kind, 1)
    if many.spec.seeding == "none":
        pytest.skip("the number of the episode decides")
    obs = many.reset(np.arange(5, dtype=np.int32), np.arange(5), [])
    alone = one.reset(ONE, np.array([3]), [])
    for key in obs:
        np.testing.assert_array_equal(obs[key][3], alone[key][0])


def test_chain_against_search_from_every_start():
    env = make("discrete")
    by_start = {}
    for seed in range(60):
        start = int(env.reset(ONE, np.array([seed]), [])["obs"][0].argmax())
        if start not in by_start:
            by_start[start] = best_return(env, seed, 5)
    np.testing.assert_allclose([by_start[s] for s in range(4)], [0.7, 0.8, 0.9, 1.0], rtol=1e-6)
    assert env.spec.optimal_return == pytest.approx(0.85) == np.mean(list(by_start.values()))


def test_chain_starts_are_uniform():
    env = make("discrete", 4000)
    rows = np.arange(4000, dtype=np.int32)
    counts = env.reset(rows, np.arange(4000), [])["obs"].sum(0)
    assert counts[4] == 0 and np.all(np.abs(counts[:4] - 1000) < 120)


@pytest.mark.parametrize(("kind", "settings", "depth"), [
    ("multi_discrete", {"length": 2}, 2), ("image", {"length": 3, "size": 4}, 3),
    ("token", {}, 1), ("memory", {"length": 4}, 4),
])  # fmt: skip
def test_the_best_return_of_each_seed_is_the_stated_one(kind, settings, depth):
    env = make(kind, **settings)
    for seed in range(4):
        assert best_return(env, seed, depth) == pytest.approx(env.spec.optimal_return)


def test_groups_give_a_bonus_that_only_the_critic_sees():
    env = make("dict", length=3)
    assert env.spec.group("policy") == ["cue"]
    assert env.spec.group("privileged") == ["bonus", "cue", "time"]
    surplus = []
    for seed in range(20):
        bonuses = []

        def act(obs, t, bonuses=bonuses):
            bonuses.append(float(obs["bonus"][0]))
            return obs["cue"].argmax()

        rewards, success = episode(env, seed, act)
        np.testing.assert_allclose(rewards, 1 + np.array(bonuses))
        assert success == [True] * 3
        assert best_return(env, seed, 3) == pytest.approx(sum(rewards))
        surplus.append(sum(bonuses))
    assert {abs(s) for s in surplus} <= {0.5, 1.5} and abs(np.mean(surplus)) < 0.6


def test_reach_optimum_is_reached_and_not_passed():
    env = make("continuous")
    random = np.random.RandomState(0)

    def towards(obs, t):
        return np.clip((obs["obs"][2:] - obs["obs"][:2]) / 0.1, -2, 2)

    rewards, success = episode(env, 3, towards)
    assert env.spec.optimal_return == pytest.approx(-(0.6 + 0.4 + 0.2))
    assert sum(rewards) == pytest.approx(env.spec.optimal_return, abs=1e-5) and success[-1]
    for _ in range(50):
        noisy, _ = episode(env, 3, lambda o, t: np.clip(towards(o, t) + random.normal(0, 0.3, 2), -2, 2))
        assert sum(noisy) < env.spec.optimal_return
    assert make("continuous", dims=1).spec.action.shape == (1,)


def test_image_shows_its_bright_side():
    env = make("image", 8, size=8)
    rows = np.arange(8, dtype=np.int32)
    image = env.reset(rows, np.arange(8), [])["image"].astype(int)
    halves = np.stack([image[:, :, :4], image[:, :, 4:]]).mean((2, 3, 4))
    tops = np.stack([image[:, :4], image[:, 4:]]).mean((2, 3, 4))
    brightest = np.concatenate([halves, tops]).argmax(0)
    assert env.step(rows, brightest, False).reward.tolist() == [1.0] * 8
    assert image.max() <= 223 and env.spec.observation["image"].layout == "HWC"


def test_tokens_are_reversed():
    env = make("token", size=3, vocabulary=5)
    prompt = env.reset(ONE, np.array([7]), [])["prompt"]
    assert prompt.shape == (1, 3) and prompt.max() < 5
    assert env.step(ONE, prompt[:, ::-1], False).reward[0] == 1
    wrong = prompt[:, ::-1].copy()
    wrong[0, 0] = (wrong[0, 0] + 1) % 5
    env.reset(ONE, np.array([7]), [])
    result = env.step(ONE, wrong, False)
    assert (result.reward[0], result.terminated[0], result.success[0]) == (0, True, False)


def test_memory_shows_the_cue_once():
    env = make("memory", 200)
    rows = np.arange(200, dtype=np.int32)
    first = env.reset(rows, np.arange(200), [])["obs"]
    cue = first[:, :2].argmax(1)
    assert 70 < cue.sum() < 130
    for t in range(5):
        result = env.step(rows, np.zeros(200, np.int64), True)
        assert (result.obs["obs"][:, :2] == 0).all() and (result.obs["obs"][:, 2] == (t == 4)).all()
        assert not result.reward.any()
    np.testing.assert_array_equal(env.step(rows, cue, False).reward, np.ones(200))


def test_the_counter_counts():
    env = make("counter", lengths=[2, 3], success_episodes=[2], success_length=4)
    lengths, returns, wins = [], [], []
    for _ in range(4):
        rewards, success = episode(env, 0, lambda obs, t: 0)
        lengths.append(len(rewards))
        returns.append(sum(rewards))
        wins.append(success[-1])
        assert not any(success[:-1])
    assert lengths == [2, 3, 4, 3] and returns == [3, 6, 10, 6] and wins == [False, False, True, False]
    obs = env.reset(ONE, np.array([0]), [{"episode": 9}])
    assert obs["obs"].tolist() == [[9, 0, 0]]
    assert env.step(ONE, np.array([1]), True).obs["obs"].tolist() == [[9, 1, 0]]
    assert make("counter", lengths=[2, 3]).spec.optimal_return == 4.5


def test_the_counter_succeeds_by_seed():
    env = make("counter", lengths=[100], success_seeds=[11], success_length=5)
    assert [len(episode(env, seed, lambda obs, t: 0)[0]) for seed in (10, 11, 12)] == [100, 5, 100]


@pytest.mark.parametrize("settings", [
    {"kind": "chess"}, {"dims": 0}, {"vocabulary": 1}, {"size": 1}, {"lengths": []}, {"lengths": [0]},
])  # fmt: skip
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        toy.make(toy.Config(**settings), 1)


def test_goals_that_are_shown_apart_and_judged_by_their_function():
    """The expert is there after eight steps; every step gives what `goal_reached` says of place and goal."""
    env = make("goal_reach")
    env.reset(ONE, np.array([3]), [])
    total, terminated = 0.0, False
    while not terminated:
        step = env.step(ONE, env.expert(ONE).astype(np.float32), True)
        reward, there = goal_reached(step.obs["place"], step.obs["goal"])
        assert (reward == step.reward).all() and (there == step.terminated).all()
        total, terminated = total + float(step.reward[0]), bool(step.terminated[0])
    assert total == env.spec.optimal_return == -7.0


@pytest.mark.parametrize(("right", "least", "most"), [(0.0, 0.0, 0.0), (0.5, 0.4, 0.6), (1.0, 1.0, 1.0)])
def test_demonstrations_that_go_two_ways(right, least, most):
    """The part that reaches the goal; the others end as far away on its other side, within the bounds."""
    env = make("two_ways", 200, right=right)
    rows = np.arange(200)
    env.reset(rows, np.arange(200), [])
    there = np.zeros(200, bool)
    for _ in range(env.spec.time_limit):
        there |= env.step(rows, env.expert(rows).astype(np.float32), True).terminated
    assert least <= there.mean() <= most
    assert (np.abs(env.place - env.goal)[~there] > 0.5).any(1).all()


def test_options_of_a_reach():
    """The goal is as far as the row's option says, and the expert takes steps of its gain."""
    rows = np.arange(3, dtype=np.int32)
    env = make("sparse_reach", 3)
    obs = env.reset(rows, np.array([5, 5, 5]), [{"distance": 0.2}, None, {"distance": 1.6, "gain": 0.8}])[
        "obs"
    ]
    apart = np.abs(obs[:, 2:] - obs[:, :2])
    assert apart == pytest.approx(np.array([[0.2] * 2, [0.8] * 2, [1.6] * 2]), abs=1e-6)
    assert (np.abs(obs) <= 1.0 + 1e-6).all()
    result = env.step(rows, env.expert(rows), True)
    moved = np.abs(result.obs["obs"][:, :2] - obs[:, :2])
    assert moved == pytest.approx(np.array([[0.1] * 2, [0.1] * 2, [1.6] * 2]), abs=1e-6)
    assert result.success.tolist() == [False, False, True]
    # The next episode without options is the usual one.
    obs = env.reset(rows[2:], np.array([5]), [])["obs"]
    assert np.abs(obs[:, 2:] - obs[:, :2]) == pytest.approx(0.8, abs=1e-6)


@pytest.mark.parametrize(
    ("kind", "options", "text"),
    [
        ("continuous", {"distnce": 1.0}, "toy-continuous has no option 'distnce'; it has distance, gain"),
        ("discrete", {"distance": 1.0}, "toy-discrete has no option 'distance'; it has none"),
        ("continuous", {"distance": 2.0}, "option distance is 2.0, not between 0.0 and 1.6"),
        ("continuous", {"gain": "big"}, "option gain is 'big', not between 0.0 and 1.0"),
    ],
)
def test_options_that_are_none(kind, options, text):
    with pytest.raises(SpecError, match=text):
        make(kind).reset(ONE, np.array([1]), [options])
