"""Seeds of decisions do not depend on what was remembered."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from actor_kit import CounterEngine, Rig, ScriptedHub, feed

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


@pytest.mark.parametrize(("hold", "drawn"), [(3, [0, 0, 0, 3, 3]), (0, [0] * 5), (1, [0, 1, 2, 3, 4])])
def test_held_noise_has_the_seed_of_the_step_it_was_drawn_at(
    tmp_path: Path, hold: int, drawn: list[int]
) -> None:
    """Two rows that end at different times: each keeps its own."""
    engine = CounterEngine()
    engine.spec.held_noise = hold
    rig = Rig(tmp_path, [ScriptedHub([5, 2])], engine=engine, feed=feed(4), seed=3)
    rig.run(lambda: len(engine.calls) > 12)
    key, seen = stream(3, "action-noise"), set()
    for call in engine.calls:
        episode, step = call["x"][:, 1].astype(np.int64), call["x"][:, 2].astype(np.int64)
        wanted = decision_seeds(key, episode, np.array([drawn[each] for each in step]))
        assert (call["ask"].held == wanted).all()
        seen |= {*zip(episode.tolist(), step.tolist())}
    assert {(0, 4), (1, 1)} <= seen


def test_without_it_nothing_is_asked_to_be_held(tmp_path: Path) -> None:
    rig = Rig(tmp_path, [ScriptedHub([5, 2])], feed=feed(4))
    rig.run(lambda: len(rig.engine.calls) > 3)
    assert all(call["ask"].held is None for call in rig.engine.calls)
