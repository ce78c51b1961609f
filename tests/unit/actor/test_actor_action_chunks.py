"""Decisions that hold several actions, with the real hub, broker and store: what is recorded of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from together_kit import System, feed_of, make

from rollbus_envs import toy
from rollbus_policies import mlp
from rollbus_policies._executed import executed

#: Episodes of the counter, in turn; the reward of step t is t.
LENGTHS = [5, 3]


@pytest.fixture
def chunks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[tuple[Any, list[dict[str, Any]]]]:
    """(policy, recorded chunks) of a policy that decides 4 actions and executes 2 of them."""
    monkeypatch.setenv("ROLLBUS_RUNTIME_DIR", str(tmp_path))
    env = toy.Config(kind="counter", lengths=LENGTHS)
    policy = make(mlp, env, chunk=4, execute=2)
    system = System(tmp_path, policy, feed_of(64, 8), env)
    system.run(lambda: system.learner and len(system.learner.batches) >= 3)
    assert system.learner is not None
    assert not [name for name in system.actors[0].numbers() if name.startswith("dropped_")]
    yield policy, [chunk for batch in system.learner.batches for chunk in batch]
    system.stop()


def test_rewards_and_steps_of_action_chunks_by_hand(chunks: Any) -> None:
    by_step = {
        5: {0: (2, [1, 2], False), 2: (2, [3, 4], False), 4: (1, [5, 0], True)},
        3: {0: (2, [1, 2], False), 2: (1, [3, 0], True)},
    }
    seen = set()
    for chunk in chunks[1]:
        assert chunk["action"].shape[2:] == (4,) and chunk["reward"].shape[2] == 2
        assert chunk["log_prob"].shape[2] == 2
        for row, length in enumerate(chunk["lengths"]):
            for t in range(length):
                number = int(chunk["obs/obs"][t, row, 0])
                step = int(chunk["step"][t, row])
                num, rewards, ends = by_step[LENGTHS[number % 2]][step]
                seen.add((number % 2, step))
                assert chunk["num_steps"][t, row] == num
                assert chunk["reward"][t, row].tolist() == rewards
                assert bool(chunk["terminated"][t, row]) == ends
    assert seen == {(0, 0), (0, 2), (0, 4), (1, 0), (1, 2)}


def test_log_probs_count_what_was_executed(chunks: Any) -> None:
    policy, recorded = chunks
    cut = 0
    for chunk in recorded:
        t = int(chunk["lengths"].min())
        columns = {name: torch.from_numpy(chunk[name][:t]) for name in ("obs/obs", "action", "num_steps")}
        scored = policy(columns, ("log_prob",))["log_prob"].detach()
        stored = executed(torch.from_numpy(chunk["log_prob"][:t]), columns["num_steps"])
        assert np.allclose(scored, stored, atol=1e-5)
        ended = chunk["num_steps"][:t] == 1
        assert np.array_equal(stored[ended], chunk["log_prob"][:t, :, 0][ended])
        cut += int(ended.sum())
    assert cut > 4
