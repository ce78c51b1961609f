"""Reward scaling by the running deviation of the discounted return."""

import json

import numpy as np
import pytest

from rollbus_learner.reward_scaling import RewardScaler

GAMMA = 0.9


def rows(reward, done, episode, step):
    """[T, N] arguments of a scaler."""
    reward = np.asarray(reward, np.float32)
    return dict(
        reward=reward,
        discount=np.full(reward.shape, GAMMA, np.float32),
        done=np.asarray(done, bool),
        valid=np.ones(reward.shape, bool),
        episode=np.asarray(episode),
        step=np.asarray(step),
    )


def returns_of(reward, done):
    """One row, from the definition."""
    total, out = 0.0, []
    for r, d in zip(reward, done):
        total = GAMMA * total + r
        out.append(total)
        total = 0.0 if d else total
    return out


def case(T=24, seed=0):
    rng = np.random.default_rng(seed)
    reward, done = rng.normal(size=T), rng.random(T) < 0.15
    episode = np.concatenate([[0], np.cumsum(done)[:-1]])
    return reward, done, episode, np.arange(T)


def test_scale_is_the_deviation_of_the_returns():
    reward, done, episode, step = case()
    scaler = RewardScaler()
    got = scaler(**rows(*(x[:, None] for x in (reward, done, episode, step))))
    assert scaler.scale == pytest.approx(np.std(returns_of(reward, done)), rel=1e-5)
    np.testing.assert_allclose(got[:, 0], reward / scaler.scale, rtol=1e-5)


@pytest.mark.parametrize("cut", [1, 5, 23])
def test_episodes_go_on_across_updates_whatever_row_they_are_in(cut):
    whole = [case(seed=s) for s in (0, 1)]
    for _, _, episode, _ in whole[1:]:
        episode += 1000
    stacked = [np.stack(x, axis=1) for x in zip(*whole)]
    scaler, other = RewardScaler(), RewardScaler()
    scaler(**rows(*stacked))
    other(**rows(*(x[:cut] for x in stacked)))
    other(**rows(*(x[cut:, ::-1] for x in stacked)))
    assert other.scale == pytest.approx(scaler.scale, rel=1e-6)


def test_two_chunks_of_one_episode_in_one_batch():
    reward, done, episode, step = case()
    halves = [np.stack([x[12:], x[:12]], axis=1) for x in (reward, done, episode, step)]
    scaler = RewardScaler()
    scaler(**rows(*halves))
    assert scaler.scale == pytest.approx(np.std(returns_of(reward, done)), rel=1e-5)


def test_padding_counts_for_nothing():
    reward, done, episode, step = case()
    c = rows(*(x[:, None] for x in (reward, done, episode, step)))
    short = RewardScaler()
    short(**{k: v[:10] for k, v in c.items()})
    padded = RewardScaler()
    c["valid"][10:], c["reward"][10:] = False, np.nan
    padded(**c)
    assert padded.scale == pytest.approx(short.scale, rel=1e-9)
    assert padded.running == short.running


def test_state_is_plain_and_complete():
    reward, done, episode, step = case()
    first = RewardScaler()
    parts = [{k: v[a:b] for k, v in rows(*(x[:, None] for x in (reward, done, episode, step))).items()}
             for a, b in ((0, 11), (11, 24))]  # fmt: skip
    first(**parts[0])
    second = RewardScaler()
    second.load_state(json.loads(json.dumps(first.state())))
    np.testing.assert_array_equal(first(**parts[1]), second(**parts[1]))


def test_before_any_return_the_scale_is_one():
    assert RewardScaler().scale == 1.0
