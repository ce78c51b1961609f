"""Seeds of decisions do not depend on what was remembered."""

from __future__ import annotations

import numpy as np

from rollbus_actor.seeds import DecisionSeeds
from rollbus_core.rng import decision_seeds, episode_seed, stream


def test_seeds_follow_the_episodes() -> None:
    key = stream(7, "action-noise")
    seeds = DecisionSeeds(key)
    first, other = np.array([1 << 48, 5], np.int64), np.array([1 << 48, 6], np.int64)
    asked = ((first, [0, 3]), (first, [1, 4]), (other, [2, 0]), (first, [2, 5]), (first[:1], [9]))
    for episode, step in asked:
        steps = np.array(step, np.int32)
        assert (seeds(episode, steps) == decision_seeds(key, episode, steps)).all()


def test_the_seed_of_one_episode_is_that_of_its_first_decision() -> None:
    for episode in (0, 5, 1 << 48 | 3 << 28 | 9, (1 << 62) + 7):
        for evaluation, name in ((False, "training"), (True, "evaluation")):
            whole = int(decision_seeds(stream(3, name), np.array([episode]), np.array([0]))[0])
            expected = whole & 0x7FFFFFFF | (0x80000000 if evaluation else 0)
            assert episode_seed(3, episode, evaluation=evaluation) == expected
