"""Rewards beside the environment's, by hand: where they go, what a function sees, what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from learner_kit import SlabWriter, fill_counting, make_layout

from rollbus_core.config.models import RewardConfig
from rollbus_core.feed import Feed, TableConfig
from rollbus_core.slabs import SlabFolder
from rollbus_learner import rewards
from rollbus_learner.gather import SlabReader
from rollbus_wire.errors import ConfigError
from rollbus_wire.messages import Batch
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec

SPEC = EnvSpec("line", {"x": ArraySpec("float32", (1,))}, ActionSpec("discrete", num=[2]))


def moved(columns):
    """How far a decision moved, and nothing else."""
    return (columns["next_obs/x"] - columns["obs/x"])[..., 0]


def wide(columns):
    return np.zeros(3)


def broken(columns):
    return np.full(columns["reward"].shape[:-1], np.nan)


HERE = f"{__name__}:"
TABLE = TableConfig(batch_steps=8)
CHUNKS = {"train": Feed(table=TABLE, num_decisions=2)}
STEPS = Feed(table=TableConfig(sampler="replay"), num_decisions=2, unit="step")


def added(batch, *configs, feeds=CHUNKS):
    """Add the rewards of ``configs`` (function, weight[, name]) to ``batch``."""
    sources = [
        RewardConfig(source=HERE + function, weight=weight, name=name[0] if name else "")
        for function, weight, *name in configs
    ]
    found = rewards.build(sources, feeds, SPEC, 1.0, "cpu")
    assert found is not None
    return found.add(batch)


def chunk():
    """Two decisions of one row; the first one ends its episode at 5, the next begins at 1."""
    return {
        "obs/x": torch.tensor([0.0, 1.0, 4.0]).reshape(3, 1, 1), "final_obs/x": torch.tensor([[5.0]]),
        "final_slot": torch.tensor([[0], [-1]]), "reward": torch.ones(2, 1, 3),
        "valid": torch.tensor([[True], [True]]), "terminated": torch.tensor([[True], [False]]),
    }  # fmt: skip


def test_they_are_added_at_the_first_step_and_see_the_final_observation():
    batch = chunk()
    metrics = added(batch, ("moved", 0.5), ("moved", -0.25, "back"))
    assert batch["reward"][:, 0].tolist() == [[2.25, 1.0, 1.0], [1.75, 1.0, 1.0]]
    assert metrics == {"reward_moved": 4.0, "reward_back": 4.0}


def test_replayed_steps_have_their_next_observation():
    batch = {
        "obs/x": torch.zeros(2, 1), "next_obs/x": torch.tensor([[2.0], [7.0]]), "reward": torch.zeros(2, 1),
        "valid": torch.tensor([True, False]),
    }  # fmt: skip
    assert added(batch, ("moved", 1.0), feeds={"train": STEPS}) == {"reward_moved": 2.0}
    assert batch["reward"].flatten().tolist() == [2.0, 0.0]


def test_data_beside_what_is_collected_is_rewarded_alike():
    steps = {
        "obs/x": torch.zeros(1, 1), "next_obs/x": torch.ones(1, 1), "reward": torch.zeros(1, 1),
        "valid": torch.ones(1, dtype=torch.bool),
    }  # fmt: skip
    batch = steps | {f"demos/{name}": 3 * column for name, column in steps.items() if name != "valid"}
    batch["demos/valid"] = steps["valid"]
    assert added(batch, ("moved", 1.0), feeds={"train": STEPS, "demos": STEPS}) == {"reward_moved": 1.0}
    assert batch["reward"].tolist() == [[1.0]] and batch["demos/reward"].tolist() == [[3.0]]


def test_what_is_not_right_is_refused():
    with pytest.raises(ConfigError, match=r"wide gave \[3\], one number per decision is \[2, 1\]"):
        added(chunk(), ("wide", 1.0))
    with pytest.raises(ConfigError, match="not finite"):
        added(chunk(), ("broken", 1.0))
    with pytest.raises(ConfigError, match="learner.rewards.* has no function 'nothing'"):
        added(chunk(), ("nothing", 1.0))
    with pytest.raises(ConfigError, match="a transition has 3; set algorithm.n_step: 1"):
        added({}, ("moved", 1.0), feeds={"train": STEPS.model_copy(update={"n_step": 3})})


def test_names_of_metrics():
    def label(source, name=""):
        return RewardConfig(source=source, name=name).label

    assert label("mine.rewards:near") == "near" and label("data/my-model/") == "my_model"
    assert label("data/my-model", "progress") == "progress"


def late(batch, weight, feeds):
    found = rewards.build([RewardConfig(source="late:judge", weight=weight)], feeds, SPEC, 1.0, "cpu")
    return found.add(batch)


def test_what_annotators_attached_to_chunks_is_added(tmp_path):
    slab = SlabWriter(tmp_path, make_layout(3, 2), 2)
    for number in (0, 1):
        fill_counting(slab.cell(number), 0.0)
        slab.cell(number)["reward"][...] = 1.0
    short = slab.chunk(0, [2, 1], slice="a") | {"late": {"judge": np.array([[1, 2], [3, 99]], np.float32)}}
    whole = slab.chunk(1, [3, 3], slice="b") | {"late": {"judge": np.full((3, 2), 10.0, np.float32)}}
    batch = SlabReader(SlabFolder(tmp_path)).read(Batch("train", 1, [whole, short]))
    assert batch["late/judge"].tolist() == [[1, 2, 10, 10], [3, 0, 10, 10], [0, 0, 10, 10]]
    metrics = late(batch, 0.5, CHUNKS)
    assert batch["reward"][0, :, 0].tolist() == [1.5, 2.0, 6.0, 6.0]
    assert metrics == {"reward_judge": pytest.approx((1 + 2 + 3 + 60) / 9)}


def test_what_annotators_attached_to_steps_is_added_and_data_has_none(tmp_path):
    slab = SlabWriter(tmp_path, make_layout(3, 2), 1)
    fill_counting(slab.cell(0), 0.0)
    slab.generation(0, 1)
    message = Batch(
        "train", 1, [], chunk=np.zeros((1, 2), np.int32), time=np.array([[1, 0]], np.int32),
        row=np.array([[0, 1]], np.int32), slabs=[slab.item], chunk_slab=np.zeros(1, np.int32),
        chunk_offset=np.zeros(1, np.int64), chunk_generation=np.ones(1, np.uint64),
        late={"judge": np.array([[4.0, 5.0]], np.float32)},
    )  # fmt: skip
    batch = SlabReader(SlabFolder(tmp_path)).read(message)
    before = batch["reward"].clone()
    batch |= {f"demos/{name}": column.clone() for name, column in batch.items() if name != "late/judge"}
    assert late(batch, 2.0, {"train": STEPS, "demos": STEPS}) == {"reward_judge": 4.5}
    assert (batch["reward"] - before)[:, 0].tolist() == [8.0, 10.0]
    assert torch.equal(batch["demos/reward"], before)
