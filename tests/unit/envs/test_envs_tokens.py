"""Prompts and completions: hand-made cases, and experts that are always right."""

import numpy as np
import pytest

from rollbus_envs import _toy_tokens as tokens
from rollbus_envs import toy
from rollbus_wire.check import check_env

ROWS = np.arange(200)


def fresh(**settings):
    env = toy.make(toy.Config(**settings), len(ROWS))
    return env, env.reset(ROWS, ROWS * 7, [None] * len(ROWS))


def test_a_completion_is_read_up_to_its_first_end():
    given = np.array([[6, 1, 7, 1], [6, 7, 8, 9], [1, 1, 1, 1]])
    assert tokens.cut(given).tolist() == [[6, 1, 0, 0], [6, 7, 8, 9], [1, 0, 0, 0]]


def test_copy_and_reverse():
    env, obs = fresh(kind="digits")
    right = env.expert(ROWS)
    for prompt, answer in zip(obs["prompt"].tolist(), right.tolist()):
        digits = [t for t in prompt[1:] if t]
        assert 2 <= len(digits) <= 8 and all(6 <= t <= 15 for t in digits)
        expected = digits if prompt[0] == tokens.COPY else digits[::-1]
        assert answer == expected + [tokens.END] + [0] * (8 - len(digits))
    wrong = right.copy()
    wrong[:100, 0] = 5
    result = env.step(ROWS, wrong, True)
    assert result.reward.tolist() == [0.0] * 100 + [1.0] * 100
    assert result.terminated.all() and (result.success == (result.reward > 0)).all()


def test_a_tool_is_needed_to_know():
    env, obs = fresh(kind="tool")
    assert (obs["prompt"][:, 2:] == 0).all()
    first = env.step(ROWS, env.expert(ROWS), True)
    assert not first.terminated.any() and not first.reward.any()
    assert (first.obs["prompt"][:, 4] == env.secret(ROWS)[:, 1] + tokens.ZERO).all()
    second = env.step(ROWS, env.expert(ROWS), True)
    assert second.terminated.all() and second.reward.all()


def test_a_second_call_and_a_guess_end_the_episode():
    env, _ = fresh(kind="tool")
    guess = np.tile([tokens.ZERO + 3, tokens.END, 0], (len(ROWS), 1))
    result = env.step(ROWS, guess, True)
    assert result.terminated.all() and 0.03 < result.reward.mean() < 0.2
    env, _ = fresh(kind="tool")
    call = env.call(ROWS)
    assert not env.step(ROWS, call, True).terminated.any()
    assert env.step(ROWS, call, True).terminated.all()


def test_without_the_tool_the_result_is_missing():
    env, _ = fresh(kind="tool", tool=False)
    result = env.step(ROWS, env.expert(ROWS), True)
    assert (result.obs["prompt"][:, 4] == 0).all() and not result.terminated.any()


@pytest.mark.parametrize(("confused", "share"), [(0.0, 1.0), (0.3, 0.7), (1.0, 0.0)])
def test_a_confused_expert_is_right_in_the_other_episodes_only(confused, share):
    env = toy.make(toy.Config(kind="digits", confused=confused), 2000)
    rows = np.arange(2000)
    env.reset(rows, rows, [None] * 2000)
    prompts, shown = env.look(rows)["prompt"], env.expert(rows)
    palindrome = [list(p[1:][p[1:] > 0]) == list(p[1:][p[1:] > 0])[::-1] for p in prompts]
    right = (shown == env.right(rows)).all(1)
    assert right[~np.array(palindrome)].mean() == pytest.approx(share, abs=0.04 if 0 < share < 1 else 0)


@pytest.mark.parametrize("kind", ["digits", "tool"])
def test_they_are_what_they_state(kind):
    assert not check_env(lambda n: toy.make(toy.Config(kind=kind), n)).problems
