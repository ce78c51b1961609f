"""Counter-based random numbers: reference values, moments, independence, disjoint seeds."""

import numpy as np
import pytest

from rollbus_core import rng


def test_mixer_is_splitmix64() -> None:
    # First outputs of the published reference generator from state 1234567.
    golden = 0x9E3779B97F4A7C15
    states = [(1234567 + i * golden) % 2**64 for i in (1, 2, 3)]
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert rng.mix(np.array(states, np.uint64)).tolist() == expected


def test_moments() -> None:
    seeds = np.arange(4000, dtype=np.uint64)
    u, z = rng.uniform(seeds, 50), rng.normal(seeds, 51)
    assert u.min() >= 0 and u.max() < 1
    assert u.mean() == pytest.approx(0.5, abs=3e-3) and u.var() == pytest.approx(1 / 12, abs=1e-3)
    assert z.shape == (4000, 51) and z.dtype == np.float32
    assert z.mean() == pytest.approx(0, abs=8e-3) and z.std() == pytest.approx(1, abs=5e-3)
    assert abs(np.corrcoef(z[:, 0], z[:, 1])[0, 1]) < 0.05


def test_a_row_depends_on_its_own_seed_only() -> None:
    key = rng.stream(7, "noise")
    episode, step = np.array([3, 9, 3]), np.array([0, 4, 1])
    together = rng.normal(rng.decision_seeds(key, episode, step), 5)
    alone = [rng.normal(rng.decision_seeds(key, episode[i : i + 1], step[i : i + 1]), 5)[0] for i in range(3)]
    assert np.array_equal(together, np.stack(alone))
    assert not np.array_equal(together[0], together[2])


def test_streams_are_unrelated() -> None:
    assert rng.stream(1, "a") != rng.stream(1, "b") != rng.stream(2, "b")


def test_training_and_evaluation_never_share_a_seed() -> None:
    episodes = [rng.episode_id(0, row, k) for row in range(8) for k in range(200)]
    training = {rng.episode_seed(1, e, evaluation=False) for e in episodes}
    evaluation = {rng.episode_seed(1, e, evaluation=True) for e in range(1600)}
    assert max(training) < 2**31 <= min(evaluation) and max(evaluation) < 2**32
    assert len(training) == len(episodes)


def test_episode_ids_are_unique_over_hub_starts_and_rows() -> None:
    ids = {rng.episode_id(i, r, k) for i in range(3) for r in range(40) for k in range(50)}
    assert len(ids) == 3 * 40 * 50
