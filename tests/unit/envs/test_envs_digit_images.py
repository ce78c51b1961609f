"""Digits to be painted: what the judge says of handwritten ones, and of an expert that errs."""

import numpy as np
import pytest

from rollbus_envs import digit_images
from rollbus_wire.check import check_env
from rollbus_wire.errors import ConfigError

pytest.importorskip("sklearn")
ROWS = np.arange(300)


def shown(confused):
    env = digit_images.make(digit_images.Config(confused=confused), len(ROWS))
    env.reset(ROWS, ROWS, [None] * len(ROWS))
    return env, env.step(ROWS, env.expert(ROWS), True)


def test_handwritten_digits_are_liked_and_noise_is_not():
    env, result = shown(0.0)
    assert result.terminated.all() and result.success.mean() > 0.95 and result.reward.mean() > 0.85
    noise = np.random.default_rng(0).uniform(-1, 1, (300, 64)).astype(np.float32)
    assert env.judge(noise)[ROWS, env.asked(ROWS)].mean() < 0.2


def test_a_confused_expert_paints_another_digit():
    env, result = shown(0.5)
    assert result.success.mean() == pytest.approx(0.5, abs=0.1)
    env, result = shown(1.0)
    assert result.success.mean() < 0.03
    assert set(env.judge(env.expert(ROWS)).argmax(1)) == set(range(10))


def test_it_keeps_the_contract_of_environments():
    assert not check_env(lambda n: digit_images.make(digit_images.Config(), n)).problems


def test_a_share_is_a_share():
    with pytest.raises(ConfigError, match="env.confused is 2"):
        digit_images.make(digit_images.Config(confused=2.0), 1)
