"""Batches of several streams: minibatches, executed actions, supervised learning, RLPD."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from learner_tiny import SPEC, built, step_batch, update

from rollbus_core.feed import Feed, TableConfig
from rollbus_core.slabs import SlabFolder
from rollbus_learner.algorithm import Plan, Progress, of_stream
from rollbus_learner.algorithms import rlpd, sft
from rollbus_learner.minibatch import minibatches
from rollbus_learner.streams import Streams
from rollbus_policies import mlp
from rollbus_wire.errors import ConfigError
from rollbus_wire.link import local_pair
from rollbus_wire.messages import Batch, Consumed, OpenTable, Sample, TableState

STEP = Feed(table=TableConfig(sampler="replay"), num_decisions=4, unit="step", num_batches=2, batch_size=3)
START = Progress(updates=0, env_steps=0, total_steps=100)


def prefixed(batch, name):
    return {f"{name}/{key}": column for key, column in batch.items()}


# --- minibatches -------------------------------------------------------------------------------------


def test_minibatches_hold_a_part_of_every_stream():
    main = {"x": torch.arange(8), "valid": torch.ones(8, dtype=torch.bool)}
    demos = {"x": torch.arange(100, 104), "valid": torch.tensor([True, False, True, True])}
    batch = main | prefixed(demos, "demos")
    parts = list(minibatches(batch, Plan(epochs=2, batch_size=4, ordered=True), torch.Generator()))
    assert [part["x"].tolist() for part in parts] == [[0, 1, 2, 3], [4, 5, 6, 7]] * 2
    assert [part["demos/x"].tolist() for part in parts] == [[100, 101], [102, 103]] * 2
    assert "valid" not in parts[0] and parts[0]["demos/valid"].tolist() == [True, False]
    assert of_stream(parts[1], "demos")["x"].tolist() == [102, 103]


def test_chunks_and_steps_side_by_side():
    """[T, N] of the main stream in random order; six demonstrations in three minibatches."""
    main = {"x": torch.arange(12).reshape(4, 3), "valid": torch.ones(4, 3, dtype=torch.bool)}
    demos = {"x": torch.arange(6), "valid": torch.ones(6, dtype=torch.bool)}
    parts = list(minibatches(main | prefixed(demos, "demos"), Plan(batch_size=4), torch.Generator()))
    assert sorted(torch.cat([part["x"] for part in parts]).tolist()) == list(range(12))
    assert [part["demos/x"].tolist() for part in parts] == [[0, 1], [2, 3], [4, 5]]
    assert "demos/valid" not in parts[0]


# --- the store -----------------------------------------------------------------------------------------


class Twice:
    """A policy that scores half of what is executed."""

    def from_env_action(self, action):
        return action / 2


def streams(feeds, tmp_path):
    here, store = local_pair()
    refused = []
    made = Streams(feeds, here, SlabFolder(tmp_path), Twice(), lambda what, reply: refused.append(what))
    return made, store, refused


def test_tables_are_opened_drawn_and_told_of_by_name(tmp_path):
    feeds = {"train": STEP, "demos": STEP.model_copy(update={"every": 2})}
    made, store, _ = streams(feeds, tmp_path)
    opened = []
    made.open((0, 3), {"train": 5}, lambda: opened.append(1))
    asked = [store.recv() for _ in feeds]
    assert [(e.message.table, e.message.applied) for e in asked] == [("train", 5), ("demos", 0)]
    for envelope in asked:
        assert isinstance(envelope.message, OpenTable) and not opened
        store.send(TableState(envelope.message.table, 0, 0, 0, 0, 0, 0), re=envelope.id)
        made.poll()
    assert opened == [1] and made.opened and not made.waiting
    for update_number, expected in ((0, ["train", "demos"]), (1, ["train"])):
        made.sample(update_number, lambda name: len(name))
        sent = [store.recv() for _ in expected]
        assert [(e.message.table, e.message.seed) for e in sent] == [(n, len(n)) for n in expected]
        assert all(isinstance(e.message, Sample) and e.message.batch_size == 3 for e in sent)
        for number, envelope in enumerate(sent):
            assert made.take() is None and made.waiting
            sequence = 10 + 2 * update_number + number
            store.send(Batch(envelope.message.table, sequence, []), re=envelope.id)
            made.poll()
        assert list(made.take()) == expected and made.take() is None
    made.consumed({"train": 10, "demos": 11}, (0, 4), 4)
    told = [store.recv().message for _ in range(2)]
    assert [(m.table, m.sequence, m.updates) for m in told if isinstance(m, Consumed)] == [
        ("train", 10, 4), ("demos", 11, 4)
    ]  # fmt: skip


def test_a_delivery_that_comes_again_is_not_learned_from_and_the_tables_are_opened_anew(tmp_path):
    """The log of the store lost its end while the learner lived on."""
    made, store, refused = streams({"train": STEP}, tmp_path)

    def open_and_sample(applied, number):
        made.open((0, 3), {"train": applied}, lambda: None)
        asked = store.recv()
        store.send(TableState("train", 0, 0, 0, 0, 0, 0), re=asked.id)
        made.poll()
        made.sample(0, lambda name: 1)
        store.send(Batch("train", number, []), re=store.recv().id)
        made.poll()
        return asked.message.outrun

    assert not open_and_sample(5, 6)
    assert made.take()["train"].sequence == 6 and not refused
    made.sample(1, lambda name: 1)
    store.send(Batch("train", 6, []), re=store.recv().id)
    made.poll()
    assert refused == ["sample"] and made.take() is None and not made.opened
    assert open_and_sample(6, (1 << 32) + 1)
    assert made.take()["train"].sequence == (1 << 32) + 1 and made.opened
    assert not open_and_sample(7, 7)  # applied already
    assert refused == ["sample", "sample"] and made.take() is None


def test_what_was_executed_becomes_what_the_policy_scores(tmp_path):
    made, _, _ = streams({"demos": STEP}, tmp_path)
    batch = made._with_action({"env_action": torch.tensor([[2.0], [-4.0]]), "num_steps": torch.ones(2)})
    assert batch["action"].tolist() == [[1.0], [-2.0]]
    assert "action" not in made._with_action({"x": torch.zeros(1)})


def test_only_the_main_stream_gives_chunks(tmp_path):
    chunks = Feed(table=TableConfig(batch_steps=4), num_decisions=4)
    streams({"train": chunks, "demos": STEP}, tmp_path)
    with pytest.raises(ConfigError, match="stream 'demos' gives whole chunks"):
        streams({"train": STEP, "demos": chunks}, tmp_path)


# --- supervised learning -------------------------------------------------------------------------------


def cloning(**settings):
    torch.manual_seed(0)
    config = sft.Config(**settings)
    policy = mlp.make(mlp.Config(hidden=[32], head="gaussian", normalise_obs=False), SPEC, critic=False)
    feed = config.feed(num_envs=1, num_slices=1, deterministic=False)
    return sft.make(config, SPEC, policy, feed)


def test_the_cloning_loss_is_the_negative_log_likelihood():
    """Mean -log N(a; mu, sigma) over the valid ones, with the policy's own mu and sigma."""
    algorithm = cloning()
    batch = step_batch(6)
    batch["valid"][2] = False
    policy = algorithm.policy
    with torch.no_grad():
        mean, log_std = policy.head(policy.output(policy(batch, ("features",))["features"]))
        z = (batch["env_action"] - mean) / log_std.exp()  # bounds are [-1, 1]: one and the same unit
        expected = (0.5 * z**2 + log_std + 0.5 * math.log(2 * math.pi)).sum(-1)
        numerator, count = algorithm.loss({"policy": policy}, batch).terms["cloning_loss"]
    assert count == 5
    assert numerator.item() == pytest.approx(expected[batch["valid"]].sum().item(), rel=1e-5)


def test_a_policy_with_a_loss_of_its_own_is_asked_for_it():
    class Own(torch.nn.Module):
        config, spec = SimpleNamespace(offers=frozenset({"cloning_loss"})), SimpleNamespace(state="none")

        def forward(self, batch, want):
            assert want == ("cloning_loss",) and batch["action"] is executed
            return {"cloning_loss": torch.tensor([1.0, 3.0])}

    algorithm = sft.SFT(sft.Config(), SPEC, Own(), STEP)
    executed = torch.zeros(2)
    loss = algorithm.loss({"policy": algorithm.policy}, {"env_action": executed})
    assert loss.terms["cloning_loss"][0].item() == 4.0 and loss.terms["cloning_loss"][1] == 2


def test_episodes_held_back_are_scored_and_not_learned_from():
    algorithm = cloning(validation=0.25)
    feeds = algorithm.config.feeds(num_envs=1, num_slices=1, deterministic=False)
    assert feeds["demos"].part == (0.0, 0.75) and feeds["validation"].part == (0.75, 1.0)
    assert list(cloning(validation=0.0).config.feeds(num_envs=1, num_slices=1, deterministic=False)) == [
        "demos"
    ]
    roles = {"policy": algorithm.policy}
    batch, held_back = step_batch(8), step_batch(4, seed=1)
    metrics = algorithm.label(batch | prefixed(held_back, "validation"), roles, Progress(3, 0, 1, 10))
    with torch.no_grad():
        numerator, count = algorithm.loss(roles, held_back).terms["cloning_loss"]
    assert metrics == {"validation_loss": pytest.approx(numerator.item() / count)}
    assert algorithm.label(batch, roles, Progress(3, 0, 1, 10)) == {}


# --- RLPD ----------------------------------------------------------------------------------------------


def rlpd_of(**settings):
    torch.manual_seed(0)
    config = rlpd.Config(
        batch_size=8, steps_per_update=4, updates_per_step=0.5, critic_hidden=[16], **settings
    )
    feeds = config.feeds(num_envs=1, num_slices=1, deterministic=False)
    policy = mlp.make(mlp.Config(hidden=[16], head="tanh_gaussian"), SPEC, critic=False)
    return rlpd.make(config, SPEC, policy, feeds["train"]), feeds


def test_half_of_every_minibatch_is_demonstrations():
    algorithm, feeds = rlpd_of()
    assert (feeds["train"].batch_size, feeds["demos"].batch_size, feeds["demos"].num_batches) == (4, 4, 2)
    own, demos = step_batch(8), step_batch(8, seed=1)
    own["reward"][:], demos["reward"][:] = 0.0, 1.0
    batch = own | prefixed(demos, "demos") | {"final_return": torch.zeros(3)}
    modules, _ = built(algorithm)
    algorithm.label(batch, modules, START)
    assert not [name for name in batch if name.startswith("demos/")]
    assert batch["decision_reward"].tolist() == [0.0] * 4 + [1.0] * 4 + [0.0] * 4 + [1.0] * 4
    expected = torch.cat([own["action"][:4], demos["action"][:4], own["action"][4:], demos["action"][4:]])
    assert (batch["action"] == expected).all() and len(batch["noise"]) == 16
    assert [len(part["action"]) for part in minibatches(batch, algorithm.plan(), torch.Generator())] == [8, 8]


def test_without_demonstrations_there_is_one_stream():
    _, feeds = rlpd_of(demonstrations=0.0)
    assert list(feeds) == ["train"] and feeds["train"].batch_size == 8


def test_the_target_is_the_smallest_of_a_few_heads():
    """Heads 0 to 9 at 0 to 9: of 2 drawn, the smaller one is k with probability (9 - k) / 45; mean 8/3."""
    algorithm, _ = rlpd_of()
    heads, cost = torch.arange(10.0)[:, None], torch.tensor([0.5])
    found = np.array([algorithm.next_value(heads, cost).item() for _ in range(2000)]) + 0.5
    assert set(found) == set(range(9)) and found.mean() == pytest.approx(8 / 3, abs=0.2)
    assert algorithm.policy_value(heads).item() == 4.5
    without, _ = rlpd_of(entropy_backup=False, num_target_critics=10)
    assert without.next_value(heads, cost).item() == 0.0


def test_critics_fit_on_both_streams():
    algorithm, _ = rlpd_of(critic_learning_rate=1e-2)
    modules, optimisers = built(algorithm)
    batch = step_batch(8) | prefixed(step_batch(8, seed=1), "demos")
    algorithm.label(batch, modules, START)
    losses = [
        update(algorithm, modules, optimisers, batch, START, label=False)["critic_loss"] for _ in range(30)
    ]
    assert losses[-1] < 0.5 * losses[0]
