"""The actor with the real hub, broker, environments and policies in one loop."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from together_kit import System, feed_of, make

from rollbus_actor.actor import Actor
from rollbus_actor.engines.base import Forward
from rollbus_actor.engines.torch_local import Engine
from rollbus_core.config.models import ActorConfig, EnvConfig
from rollbus_core.version import Version
from rollbus_envs import toy
from rollbus_policies import mlp, recurrent
from rollbus_policies.base import Ask
from rollbus_simulator.episodes import TrainingEpisodes
from rollbus_simulator.hub import Hub
from rollbus_wire.link import local_pair
from rollbus_wire.polling import Poller


@pytest.fixture
def systems(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[System]]:
    monkeypatch.setenv("ROLLBUS_RUNTIME_DIR", str(tmp_path))
    made: list[System] = []
    yield made
    for system in made:
        system.stop()


@pytest.mark.parametrize("lag", [0, 1])
def test_batches_of_real_services(tmp_path: Path, systems: list[System], lag: int) -> None:
    env = toy.Config(kind="discrete")
    policy = make(mlp, env)
    system = System(tmp_path, policy, feed_of(64, 8, lag), env)
    systems.append(system)
    system.run(lambda: system.learner and len(system.learner.batches) >= 6)
    assert system.learner is not None
    for number, batch in enumerate(system.learner.batches):
        assert sum(int(chunk["lengths"].sum()) for chunk in batch) == 64
        for chunk in batch:
            t = int(chunk["lengths"].max())
            versions = np.unique(chunk["version"][:t])
            assert versions.min() >= number - lag and versions.max() <= number
            scored = policy(
                {
                    "obs/obs": torch.from_numpy(chunk["obs/obs"][:t]),
                    "action": torch.from_numpy(chunk["action"][:t]),
                },
                ("log_prob",),
            )["log_prob"].detach()
            assert np.allclose(scored, chunk["log_prob"][:t], atol=1e-5)
    numbers = system.actors[0].numbers()
    assert sorted(numbers["held"]) == ["hub-0/0", "hub-0/1"]
    assert not [name for name in numbers if name.startswith("dropped_")]


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_two_actors_and_one_leaves(tmp_path: Path, systems: list[System], cell: str) -> None:
    env = toy.Config(kind="memory")
    policy = make(recurrent, env, cell=cell)
    system = System(tmp_path, policy, feed_of(64, 8), env, num_actors=2)
    systems.append(system)
    system.run(lambda: all(len(a.numbers()["held"]) == 1 for a in system.actors))
    system.run(lambda: system.learner and len(system.learner.batches) >= 4)
    leaving = system.actors[0]
    leaving.drain()
    system.run(lambda: leaving.finished)
    leaving.stop()
    system.actors = system.actors[1:]
    system.run(lambda: len(system.actors[0].numbers()["held"]) == 2)
    assert system.learner is not None
    have = len(system.learner.batches)
    system.run(lambda: len(system.learner.batches) >= have + 3)  # type: ignore[union-attr]
    # Each (episode, step) was applied at most once, and the stored log-probs are those of the whole
    # sequence from the chunk's carry, also in the chunks after the hand-over.
    seen: set[tuple[int, int]] = set()
    for chunk in (chunk for batch in system.learner.batches for chunk in batch):
        lengths = chunk["lengths"]
        for row, length in enumerate(lengths):
            pairs = set(
                zip(
                    chunk["episode"][:length, row].tolist(), chunk["step"][:length, row].tolist(), strict=True
                )
            )
            assert len(pairs) == length and not pairs & seen
            seen |= pairs
        t = int(lengths.min())
        if t == 0:
            continue
        scored = policy(
            {
                "obs/obs": torch.from_numpy(chunk["obs/obs"][:t]),
                "action": torch.from_numpy(chunk["action"][:t]),
                "state": torch.from_numpy(chunk["carry"].view(np.float32)),
                "start": torch.from_numpy(chunk["step"][:t] == 0),
            },
            ("log_prob",),
        )["log_prob"].detach()
        assert np.allclose(scored, chunk["log_prob"][:t], atol=1e-5)


class Spy(Engine):
    """Keeps (episode, step) -> (action, log-prob) of every decision."""

    def __init__(self, policy: Any, found: dict[tuple[int, int], tuple[int, float]]) -> None:
        super().__init__(policy, "cpu")
        self.pin(Version(0, 1))
        self.found = found
        self.actor: Actor | None = None

    def act(self, obs: Any, state: Any, ask: Ask, seeds: np.ndarray) -> Forward:
        forward = super().act(obs, state, Ask(ask.mode, ("log_prob",)), seeds)
        assert self.actor is not None
        tick = self.actor.holdings.sessions["hub-0/0"].tick
        assert tick is not None
        keys = zip(tick.episode.tolist(), tick.step.tolist(), strict=True)
        log_probs = forward.act.extras["log_prob"].tolist()
        self.found |= dict(zip(keys, zip(forward.act.action.tolist(), log_probs, strict=True), strict=True))
        return forward


def collect(policy: Any, env: toy.Config, change_after: int, num_passes: int = 40) -> dict[Any, Any]:
    """Decisions of four rows, with another actor after every ``change_after`` passes."""
    hub_end, actor_end = local_pair(senders=("hub", "actor"))
    hub = Hub(
        "hub-0", 0, EnvConfig(num_envs=4, num_slices=1), num_rows=4, num_slices=1,
        episodes=TrainingEpisodes(1, 0), data_links=[hub_end],
        make_env=lambda num_rows: toy.make(env, num_rows),
    )  # fmt: skip
    hub.start(Poller())
    found: dict[tuple[int, int], tuple[int, float]] = {}
    done = 0
    while done < num_passes:
        engine = Spy(policy, found)
        actor = engine.actor = Actor(
            "actor-0", ActorConfig(), engine=engine, policy_spec=policy.spec, seed=1,
            connect=lambda _: actor_end,
        )  # fmt: skip
        actor.start(Poller())
        actor.take("hub-0/0", "local")
        while actor.stats.num_passes < min(change_after, num_passes - done):
            hub.poll()
            actor.poll()
        done += actor.stats.num_passes
        actor.holdings.close("leaving")
        actor_end.closed = False
    hub.stop()
    return found


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_recurrent_log_probs_do_not_change_at_a_hand_over(cell: str) -> None:
    """The same decisions with and without a change of holder in the middle of an episode."""
    env = toy.Config(kind="memory", length=12)
    policy = make(recurrent, env, cell=cell)
    straight, changed = collect(policy, env, 1000), collect(policy, env, 7)
    assert len(straight) == 160 and set(changed) == set(straight)
    for key, (action, log_prob) in straight.items():
        assert changed[key][0] == action and abs(changed[key][1] - log_prob) < 1e-6
