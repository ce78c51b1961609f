"""What an expert taught about drawn decisions: labels of chunks and outcomes, by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from learner_kit import SlabWriter

from rollbus_core.columns import Layout, chunk_columns
from rollbus_core.slabs import SlabFolder
from rollbus_learner.algorithm import Progress
from rollbus_learner.algorithms import dagger, hg_dagger
from rollbus_learner.expert_chunks import ExpertChunks
from rollbus_learner.gather import SlabReader
from rollbus_policies import act, base, mlp, recurrent
from rollbus_wire.errors import ConfigError
from rollbus_wire.messages import Batch
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec

NOW = Progress(0, 0, 1000)
SPEC = EnvSpec(
    "e", {"x": ArraySpec("float32", (2,)), "expert_action": ArraySpec("float32", (1,))},
    ActionSpec("continuous", (1,), low=[-100.0], high=[100.0]), groups={"policy": ["x"]}, has_success=True,
)  # fmt: skip
#: Who took decisions 0 to 5: the policy (0) or the expert (2). An episode ends with decision 2.
SOURCES = [2, 0, 2, 2, 2, 0]


def drawn(folder, *, depth=1, chunk=3, outcome=True):
    """Decisions 5 to 0 of one row; the expert says 10 t."""
    obs = {"x": ("float32", (2,)), "expert_action": ("float32", (1,))}
    columns = chunk_columns(
        obs, ("float32", (1,)), num_decisions=6, num_rows=1, num_finals=2, num_history=depth - 1,
        chunk_length=1, carry_bytes=0, extras={},
    )  # fmt: skip
    layout = Layout.build(columns, num_decisions=6, num_rows=1, num_finals=2, num_history=depth - 1)
    folder.mkdir(exist_ok=True)
    slab = SlabWriter(folder, layout, 1)
    cell = slab.cell(0)
    cell["obs/expert_action"][:, 0, 0] = 10.0 * (np.arange(6 + depth) - depth + 1)
    cell["final_slot"][...], cell["num_steps"][...], cell["lengths"][...] = -1, 1, 6
    cell["step"][:, 0], cell["last_step"][...] = [4, 5, 6, 0, 1, 2], 3
    cell["source"][:, 0] = SOURCES
    cell["terminated"][2, 0], cell["final_slot"][2, 0] = True, 1
    cell["final_success_once"][1], cell["final_success_at_end"][1] = 1, 0
    slab.generation(0, 1)
    message = Batch(
        "train", 1, [], total_steps=6, chunk=np.zeros((1, 6), np.int32),
        time=np.arange(6, dtype=np.int32)[None, ::-1].copy(), row=np.zeros((1, 6), np.int32),
        slabs=[slab.item], chunk_slab=np.zeros(1, np.int32), chunk_offset=np.zeros(1, np.int64),
        chunk_generation=np.ones(1, np.uint64),
    )  # fmt: skip
    return SlabReader(SlabFolder(folder), expert=ExpertChunks(chunk, outcome)).read(message)


@pytest.mark.parametrize("depth", [1, 3])
def test_a_chunk_counts_as_long_as_the_expert_led_there(tmp_path, depth):
    batch = drawn(tmp_path, depth=depth)
    assert batch["expert_chunk"][..., 0].flip(0).tolist() == [
        [0, 10, 20],
        [10, 20, 20],
        [20, 20, 20],
        [30, 40, 50],
        [40, 50, 50],
        [50, 50, 50],
    ]
    assert batch["action_valid"].flip(0).tolist() == [
        [True, True, False],  # the policy took decision 1
        [True, False, False],
        [True, False, False],  # the episode is over
        [True, True, True],
        [True, True, False],  # the chunk of the table is over
        [True, False, False],
    ]
    # What the expert said when this was decided is the first action.
    newest = batch["obs/expert_action"] if depth == 1 else batch["obs/expert_action"][:, -1]
    assert torch.equal(batch["expert_chunk"][:, 0], newest)


def test_outcomes_are_known_within_the_chunk(tmp_path):
    batch = drawn(tmp_path, chunk=1)
    assert batch["episode_success_once"].flip(0).tolist() == [1, 1, 1, -1, -1, -1]
    assert batch["episode_success_at_end"].flip(0).tolist() == [0, 0, 0, -1, -1, -1]
    assert "expert_chunk" not in batch and "action_valid" not in batch
    assert "episode_success_once" not in drawn(tmp_path / "other", outcome=False)


def made(module, policy_config, spec=SPEC, **settings):
    config = module.Config(batch_size=6, steps_per_update=1, demonstrations=0, learning_rate=1e-2, **settings)
    feeds = config.feeds(num_envs=4, num_slices=1, deterministic=False)
    feed = feeds["train"].offered(policy_config.offers)
    return module.make(config, spec, base.make(policy_config, spec, critic=False), feed)


CHUNKED = (
    mlp.Config(hidden=[8], chunk=3, execute=1),
    act.Config(width=16, num_heads=2, layers=1, chunk=3, execute=1),
)


@pytest.mark.parametrize("policy", CHUNKED, ids=["mlp", "act"])
def test_dagger_teaches_chunks(tmp_path, policy):
    torch.manual_seed(0)
    algorithm = made(dagger, policy)
    batch = drawn(tmp_path)
    expected = batch["expert_chunk"].clone()
    roles = {"policy": algorithm.policy}
    assert algorithm.label(batch, roles, NOW)["expert_share"] == pytest.approx(4 / 6)
    assert torch.equal(batch["env_action"], expected) and batch["valid"].all()
    optimiser = torch.optim.Adam(algorithm.policy.parameters(), 1e-2)
    losses = []
    for _ in range(150):
        total, count = algorithm.loss(roles, batch).terms["cloning_loss"]
        losses.append(float(total.detach()) / int(count))
        optimiser.zero_grad()
        total.backward()
        optimiser.step()
    assert losses[-1] < losses[0] - 0.1


def test_padded_actions_of_a_chunk_change_nothing(tmp_path):
    algorithm = made(dagger, CHUNKED[1])
    batch, roles = drawn(tmp_path), {"policy": algorithm.policy}
    algorithm.label(batch, roles, NOW)
    losses = []
    for junk in (0.0, 77.0):
        changed = dict(batch)
        padded = ~batch["action_valid"][..., None]
        changed["env_action"] = torch.where(
            padded, torch.full_like(batch["env_action"], junk), batch["env_action"]
        )
        losses.append(float(algorithm.loss(roles, changed).terms["cloning_loss"][0].detach()))
    assert losses[0] == losses[1]


def test_only_interventions_of_successful_episodes(tmp_path):
    one = mlp.Config(hidden=[4])
    algorithm = made(hg_dagger, one, successful_only=True)
    assert algorithm.feed.episode_success and not made(hg_dagger, one).feed.episode_success
    batch = drawn(tmp_path, chunk=1)
    found = algorithm.label(batch, {"policy": algorithm.policy}, NOW)
    # SPEC counts success once; decisions 0 and 2 are the expert's, in the episode whose end is known.
    assert batch["valid"].flip(0).tolist() == [True, False, True, False, False, False]
    assert found["taught_successful"] == found["taught_unknown"] == 0.5
    at_end = EnvSpec(
        SPEC.name, SPEC.observation, SPEC.action, groups=SPEC.groups, has_success=True, success="at_end"
    )
    algorithm, batch = made(hg_dagger, one, at_end, successful_only=True), drawn(tmp_path / "b", chunk=1)
    assert algorithm.label(batch, {"policy": algorithm.policy}, NOW)["taught_successful"] == 0.0
    assert not batch["valid"].any()


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="the expert is heard at decisions only.*set policy.execute: 1"):
        made(dagger, mlp.Config(hidden=[4], chunk=3, execute=2))
    silent = EnvSpec(SPEC.name, SPEC.observation, SPEC.action, groups=SPEC.groups)
    with pytest.raises(ConfigError, match="e has no success signal; leave it out"):
        made(hg_dagger, mlp.Config(hidden=[4]), silent, successful_only=True)
    with pytest.raises(ConfigError, match="sequences of a recurrent policy"):
        made(hg_dagger, recurrent.Config(hidden=[4], state_size=3), successful_only=True)
