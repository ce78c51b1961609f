"""DAgger's labels by hand; sequences of recurrent policies are drawn whole and joined."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rollbus_core.columns import SOURCES
from rollbus_core.feed import Feed, TableConfig
from rollbus_learner.algorithm import Plan, Progress
from rollbus_learner.algorithms import dagger, hg_dagger, sft
from rollbus_learner.algorithms._cloning import join, with_state
from rollbus_learner.minibatch import minibatches
from rollbus_policies import base, mlp, recurrent
from rollbus_wire.errors import ConfigError
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec

SPEC = EnvSpec(
    "e", {"obs": ArraySpec("float32", (2,))}, ActionSpec("continuous", (1,), low=[-2.0], high=[2.0])
)
NOW = Progress(0, 0, 1000)


def made(module, **settings):
    config = module.Config(batch_size=4, steps_per_update=1, **settings)
    feeds = config.feeds(num_envs=4, num_slices=1, deterministic=False)
    policy = base.make(mlp.Config(hidden=[4]), SPEC, critic=False)
    return module.make(config, SPEC, policy, next(iter(feeds.values()))), feeds


def collected():
    """Two decisions of the policy's, one of the expert, one that was lost."""
    no = torch.zeros(4, dtype=torch.bool)
    return {
        "obs/obs": torch.zeros(4, 2), "obs/expert_action": torch.tensor([[1.0], [-2.0], [0.5], [0.0]]),
        "action": torch.full((4, 1), 9.0), "source": torch.tensor([0, 0, 2, 0], dtype=torch.uint8),
        "valid": torch.tensor([True, True, True, False]), "num_steps": torch.ones(4, dtype=torch.int32),
        "interrupted": no,
    }  # fmt: skip


def test_all_that_was_visited_is_relabelled():
    algorithm, _ = made(dagger, demonstrations=0)
    batch = collected()
    metrics = algorithm.label(batch, {"policy": algorithm.policy}, NOW)
    assert batch["env_action"].flatten().tolist() == [1.0, -2.0, 0.5, 0.0]
    assert batch["action"].flatten().tolist() == [0.5, -1.0, 0.25, 0.0]
    assert batch["valid"].tolist() == [True, True, True, False] and metrics["expert_share"] == 1 / 3


def test_only_interventions_teach_in_hg_dagger():
    algorithm, feeds = made(hg_dagger, demonstrations=0)
    batch = collected()
    algorithm.label(batch, {"policy": algorithm.policy}, NOW)
    assert batch["valid"].tolist() == [False, False, True, False]
    assert feeds["train"].expert.gate == 0.25 and feeds["train"].expert.share == 0.0


def test_demonstrations_join_each_minibatch():
    algorithm, feeds = made(dagger)
    assert {name: feed.batch_size for name, feed in feeds.items()} == {"train": 2, "demos": 2}
    demos = {
        "demos/obs/obs": torch.ones(2, 2), "demos/env_action": torch.full((2, 1), 2.0),
        "demos/action": torch.ones(2, 1), "demos/valid": torch.ones(2, dtype=torch.bool),
        "demos/source": torch.full((2,), 2, dtype=torch.uint8),
        "demos/num_steps": torch.ones(2, dtype=torch.int32),
        "demos/interrupted": torch.zeros(2, dtype=torch.bool),
    }  # fmt: skip
    batch = {name: column[:2] for name, column in collected().items()} | demos
    algorithm.label(batch, {"policy": algorithm.policy}, NOW)
    assert batch["env_action"].flatten().tolist() == [1.0, -2.0, 2.0, 2.0] and len(batch["valid"]) == 4
    assert not [name for name in batch if name.startswith("demos/")]


def test_without_an_expert_it_says_so():
    algorithm, _ = made(dagger)
    batch = collected()
    del batch["obs/expert_action"]
    with pytest.raises(ConfigError, match="e observes no expert_action.*env.expert=true"):
        algorithm.label(batch, {"policy": algorithm.policy}, NOW)


def sequences(length, num, first, **more):
    time = torch.arange(length)[:, None].expand(length, num)
    return {
        "step": time + first, "start": (time + first) == 0,
        "valid": torch.ones(length, num, dtype=torch.bool),
        "x": torch.arange(num).expand(length, num).clone() + 10 * first, **more,
    }  # fmt: skip


def test_sequences_join_padded_and_are_cut_whole():
    feed = Feed(
        table=TableConfig(sampler="replay"), num_decisions=3, unit="sequence", num_batches=2, batch_size=2
    )
    batch, further = sequences(3, 4, 0, state=torch.zeros(4, 5)), sequences(2, 2, 1, state=torch.ones(2, 5))
    join(batch, further, feed)
    assert batch["valid"].shape == (3, 6) and batch["valid"][2].tolist() == [True, True, False] * 2
    assert batch["x"][0].tolist() == [0, 1, 10, 2, 3, 11]
    assert batch["state"][:, 0].tolist() == [0, 0, 1, 0, 0, 1]
    parts = list(minibatches(batch, Plan(batch_size=3, ordered=True, whole_rows=True), torch.Generator()))
    assert [part["x"][0].tolist() for part in parts] == [[0, 1, 10], [2, 3, 11]]
    assert [part["state"].shape for part in parts] == [(3, 5)] * 2


@pytest.mark.parametrize(("cell", "size"), [("gru", 3), ("lstm", 6)])
def test_an_unknown_state_costs_the_first_decisions(cell, size):
    policy = base.make(recurrent.Config(cell=cell, hidden=[4], state_size=3), SPEC, critic=False)
    batch = sequences(4, 2, 0)
    batch["start"][0, 1] = False
    with_state(batch, policy, burn_in=2)
    assert batch["valid"].T.tolist() == [[True] * 4, [False, False, True, True]]
    assert batch["state"].shape == (2, size) and not batch["state"].any()
    known = sequences(4, 1, 5, state=torch.ones(1, size))
    with_state(known, policy, burn_in=2)
    assert known["valid"].all() and known["state"].all()


def test_a_recurrent_policy_gets_sequences():
    feed = sft.Config(batch_size=100, num_steps=30).feed(num_envs=1, num_slices=1, deterministic=False)
    found = feed.offered(recurrent.Config.offers)
    assert (found.unit, found.batch_size) == ("sequence", 4)
    assert feed.offered(mlp.Config.offers).unit == "step" and SOURCES.index("expert") == 2
    assert np.array(found.num_batches) == 10
