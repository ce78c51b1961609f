"""Continuous batching in the actor: real hubs, broker and completions, against whole passes."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from actor_kit import CounterEngine
from together_kit import ScriptedLearner, System, feed_of, make

from rollbus_actor.actor import Actor
from rollbus_actor.engines.base import make_engine
from rollbus_actor.engines.torch_local import Engine
from rollbus_actor.wrapped import WrappedEngine
from rollbus_core.config.models import ActorConfig
from rollbus_core.version import Version
from rollbus_envs import toy
from rollbus_policies import mlp, tokens
from rollbus_wire.errors import ConfigError, SpecError

#: Completions of up to 31 tokens, whose lengths are geometric as long as nothing is learned; two turns.
LONG, TURNS = toy.Config(kind="digits", size=30), toy.Config(kind="tool")
CONTINUOUS = ActorConfig(decoding="continuous")
#: What one decision was: version, prompt, completion, log-probability.
Decided = tuple[int, list[int], list[int], float]


@pytest.fixture
def systems(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[System]]:
    monkeypatch.setenv("ROLLBUS_RUNTIME_DIR", str(tmp_path))
    made: list[System] = []
    yield made
    for system in made:
        system.stop()


def sharp(env: toy.Config) -> Any:
    """A policy that prefers some tokens."""
    policy = make(tokens, env, width=32)
    with torch.no_grad():
        policy.output.weight.mul_(4.0)
    return policy


def recorded(learner: ScriptedLearner) -> dict[tuple[int, int], Decided]:
    """(episode, step) -> what was decided; each of them once."""
    found: dict[tuple[int, int], Decided] = {}
    for chunk in (chunk for batch in learner.batches for chunk in batch):
        for row, length in enumerate(chunk["lengths"].tolist()):
            for t in range(length):
                key = (int(chunk["episode"][t, row]), int(chunk["step"][t, row]))
                assert key not in found
                version = int(chunk["version"][t, row]) & 0xFFFFFFFF
                prompt, action = chunk["obs/prompt"][t, row].tolist(), chunk["action"][t, row].tolist()
                found[key] = (version, prompt, action, float(chunk["log_prob"][t, row]))
    return found


def check_log_probs(policy: Any, decided: list[Decided]) -> None:
    """Each is what ``policy`` says of the completion."""
    batch = {
        "obs/prompt": torch.tensor([prompt for _, prompt, _, _ in decided]),
        "action": torch.tensor([action for _, _, action, _ in decided]),
    }
    scored = policy(batch, ("log_prob",))["log_prob"].detach().numpy()
    np.testing.assert_allclose(scored, [log_prob for *_, log_prob in decided], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("env", [LONG, TURNS], ids=["long", "turns"])
def test_the_same_completions_as_in_whole_passes(
    tmp_path: Path, systems: list[System], env: toy.Config
) -> None:
    policy, found = sharp(env), {}
    for decoding in ("whole", "continuous"):
        config = ActorConfig(decoding=decoding, max_batch=6)
        system = System(tmp_path / decoding, policy, feed_of(32, 4), env, config=config)
        systems.append(system)
        system.run(lambda s=system: s.learner and len(s.learner.batches) >= 5)
        assert system.actors[0].numbers()["decoding"] == decoding
        assert system.learner is not None
        found[decoding] = recorded(system.learner)
        check_log_probs(policy, list(found[decoding].values()))
    whole, continuous = found["whole"], found["continuous"]
    assert len(whole) == len(continuous) == 160
    both = set(whole) & set(continuous)
    assert len(both) >= 100
    for key in both:
        assert whole[key][1:3] == continuous[key][1:3]
    numbers = systems[1].actors[0].numbers()
    assert 1 < numbers["decode_rows"] <= 6 and "decode_rows" not in systems[0].actors[0].numbers()


class Drifting(ScriptedLearner):
    """Publishes other weights each time, and keeps them."""

    def __init__(self, *arguments: Any) -> None:
        self.published: dict[int, Any] = {}
        super().__init__(*arguments)

    def publish(self) -> None:
        with torch.no_grad():
            for tensor in self.policy.state_dict().values():
                tensor += 0.05 * torch.randn_like(tensor)
        self.published[self.number] = copy.deepcopy(self.policy)
        super().publish()


def test_all_rows_of_a_decision_are_of_the_version_it_names(tmp_path: Path, systems: list[System]) -> None:
    policy = sharp(LONG)
    system = System(tmp_path, policy, feed_of(32, 4, lag=3), LONG, config=CONTINUOUS)
    systems.append(system)
    learner = system.learner = Drifting(system.paths, system.feed, copy.deepcopy(policy))
    actor, waited = system.actors[0], []

    def enough() -> bool:
        # Between two turns: a version that waits for open rows to end.
        if actor._versions.due and actor._decoding.open_rows:  # type: ignore[union-attr]
            waited.append(actor._decoding.open_rows)
        return len(learner.batches) >= 8

    system.run(enough)
    assert waited and min(waited) < max(waited)
    decided = list(recorded(learner).values())
    versions = {version for version, *_ in decided}
    assert len(versions) >= 4
    for version in versions:
        check_log_probs(learner.published[version], [each for each in decided if each[0] == version])


def test_a_slice_that_is_released_in_the_middle_goes_on_elsewhere(
    tmp_path: Path, systems: list[System]
) -> None:
    policy = sharp(LONG)
    system = System(tmp_path, policy, feed_of(32, 4), LONG, num_actors=2, config=CONTINUOUS)
    systems.append(system)
    system.run(lambda: all(len(actor.numbers()["held"]) == 1 for actor in system.actors))
    system.run(lambda: system.learner and len(system.learner.batches) >= 2)
    leaving = system.actors[0]
    system.run(lambda: leaving._decoding.open_rows)
    leaving.drain()
    assert leaving._decoding.open_rows == 0 and not leaving.holdings.sessions
    system.run(lambda: leaving.finished)
    leaving.stop()
    system.actors = system.actors[1:]
    system.run(lambda: len(system.actors[0].numbers()["held"]) == 2)
    learner = system.learner
    assert learner is not None
    have = len(learner.batches)
    system.run(lambda: len(learner.batches) >= have + 2)
    check_log_probs(policy, list(recorded(learner).values()))


def test_a_slice_that_is_lost_leaves_the_others_alone(tmp_path: Path, systems: list[System]) -> None:
    policy = sharp(LONG)
    system = System(tmp_path, policy, feed_of(32, 4), LONG, config=CONTINUOUS)
    systems.append(system)
    actor = system.actors[0]
    system.run(lambda: actor._decoding.open_rows > 4)
    session = next(iter(actor.holdings.sessions.values()))
    have = actor._decoding.open_rows
    actor.holdings._taken_away(session, "lost")
    assert 0 < actor._decoding.open_rows < have
    system.run(lambda: len(actor.numbers()["held"]) == 2)
    system.run(lambda: system.learner and len(system.learner.batches) >= 3)
    assert system.learner is not None
    check_log_probs(policy, list(recorded(system.learner).values()))


def test_a_slice_larger_than_a_batch_is_decided_alone(tmp_path: Path, systems: list[System]) -> None:
    policy, config = sharp(LONG), ActorConfig(decoding="continuous", max_batch=3)
    system = System(tmp_path, policy, feed_of(32, 4), LONG, config=config)
    systems.append(system)
    system.run(lambda: system.learner and len(system.learner.batches) >= 2)
    assert system.actors[0].numbers()["decode_rows"] <= 4


# --- who decodes continuously --------------------------------------------------------------------


def actor_of(engine: Any, spec: Any, decoding: str = "continuous", **options: Any) -> Actor:
    config = ActorConfig(decoding=decoding)
    return Actor("a", config, engine=engine, policy_spec=spec, connect=lambda _: None, **options)  # type: ignore


@pytest.mark.parametrize(("size", "expected"), [(8, "whole"), (64, "continuous")])
@pytest.mark.parametrize("engine", ["auto", "torch_local"])
def test_auto_goes_by_the_longest_completion(size: int, expected: str, engine: str) -> None:
    policy = make(tokens, toy.Config(kind="digits", size=size), width=8)
    made = make_engine(engine, policy, device="cpu")
    for decoding, name in (("auto", expected), ("whole", "whole"), ("continuous", "continuous")):
        assert actor_of(made, policy.spec, decoding).numbers()["decoding"] == name


def test_results_that_must_not_depend_on_others_come_from_whole_passes() -> None:
    policy = make(tokens, LONG, width=8)
    for options in ({"deterministic": True}, {"fixed_batch": 4}):
        assert actor_of(Engine(policy), policy.spec, **options).numbers()["decoding"] == "whole"


def test_who_cannot_says_so() -> None:
    policy, once = make(tokens, LONG, width=8), make(mlp, toy.Config(kind="discrete"))
    with pytest.raises(ConfigError, match="decides at once, not step by step; set actor.decoding: auto"):
        actor_of(Engine(once), once.spec)
    for engine in (WrappedEngine(Engine(policy)), CounterEngine()):
        with pytest.raises(ConfigError, match="has whole passes only; set actor.decoding: auto"):
            actor_of(engine, policy.spec)
        assert actor_of(engine, policy.spec, "auto").numbers()["decoding"] == "whole"


def test_weights_that_change_under_open_rows_are_an_error() -> None:
    policy = make(tokens, LONG, width=8)
    engine, seeds = Engine(policy), np.arange(3, dtype=np.uint64)
    prompts = {"prompt": np.full((3, 31), 4)}
    decoder = engine.decoder(("log_prob",))
    with pytest.raises(SpecError, match="no weights yet"):
        decoder.admit(prompts, "sample", seeds)
    engine.pin(Version(0, 1))
    numbers = decoder.admit(prompts, "sample", seeds)
    decoder.step()
    engine.pin(Version(0, 2))
    with pytest.raises(SpecError, match="came while"):
        decoder.step()
    decoder.drop(numbers)
    decoder.admit(prompts, "mode", seeds)
    decoder.step()
