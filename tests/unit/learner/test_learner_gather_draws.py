"""Draws from a replay table as samples, stretches and hindsight goals, beside plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from learner_kit import SPEC, SlabWriter, make_layout

from rollbus_core.feed import Hindsight
from rollbus_core.slabs import SlabFolder
from rollbus_learner.algorithms._replay import label_returns
from rollbus_learner.batch_metrics import describe
from rollbus_learner.gather import SlabReader
from rollbus_wire.errors import ConfigError, StaleRead
from rollbus_wire.messages import Batch


def random_ring(folder, *, depth, num_cells, slabs, seed=3, chunk_length=2):
    """Slabs full of random episodes; what a replay table looks like after its ring has wrapped."""
    draw = np.random.default_rng(seed)
    layout = make_layout(6, 3, history=depth - 1, finals=18, shape=(2,), chunk_length=chunk_length)
    writers = [SlabWriter(folder, layout, num_cells, slab=s) for s in range(slabs)]
    for writer in writers:
        for index in range(num_cells):
            cell = writer.cell(index)
            for name in ("obs/x", "final_obs/x", "action", "reward"):
                cell[name][...] = draw.normal(size=cell[name].shape)
            cell["final_return"][...] = draw.normal(size=18)
            cell["num_steps"][...] = draw.integers(1, 1 + chunk_length, cell["num_steps"].shape)
            cell["final_slot"][...] = -1
            writer.generation(index, 100 + index)
            slots = iter(range(18))
            for row in range(3):
                step = int(draw.integers(0, 2)) * 8
                for time in range(6):
                    cell["step"][time, row] = step
                    step += 2
                    if draw.random() < 0.3:
                        kind = draw.choice(["terminated", "truncated", "interrupted"])
                        cell[kind][time, row] = True
                        cell["final_slot"][time, row] = next(slots)
                        step = 0
                cell["last_step"][row] = step
            cell["lengths"][...] = 6
    return writers


def draw_batch(writers, num_cells, shape, seed=5):
    """A uniform draw over all cells, as the store sends it."""
    draw = np.random.default_rng(seed)
    num = len(writers) * num_cells
    order = draw.permutation(num)
    cell_bytes = writers[0].layout.cell_bytes
    return Batch(
        "train", 1, [], total_steps=num * 18,
        chunk=draw.integers(0, num, shape).astype(np.int32),
        time=draw.integers(0, 6, shape).astype(np.int32), row=draw.integers(0, 3, shape).astype(np.int32),
        slabs=[w.item for w in writers],
        chunk_slab=(order // num_cells).astype(np.int32),
        chunk_offset=(order % num_cells).astype(np.int64) * cell_bytes,
        chunk_generation=(100 + order % num_cells).astype(np.uint64),
    )  # fmt: skip


def naive_sample(writers, message, sample, depth):
    """One transition, frame by frame."""
    chunk = int(message.chunk.ravel()[sample])
    t, n = int(message.time.ravel()[sample]), int(message.row.ravel()[sample])
    writer = writers[int(message.chunk_slab[chunk])]
    cell = writer.cell(int(message.chunk_offset[chunk]) // writer.layout.cell_bytes)
    frames = [cell["obs/x"][t + depth - 1, n]]
    at = t
    while len(frames) < depth:
        begins = 0 <= at and cell["step"][at, n] == 0
        if not begins:
            at -= 1
        frames.insert(0, cell["obs/x"][at + depth - 1, n])
    slot = cell["final_slot"][t, n]
    ended = (cell["terminated"][t, n] or cell["truncated"][t, n]) and slot >= 0
    newest = cell["final_obs/x"][slot] if ended else cell["obs/x"][t + depth, n]
    return cell, t, n, np.stack(frames), np.stack([*frames[1:], newest])


@pytest.mark.parametrize("depth", [1, 3])
def test_steps_equal_a_loop(tmp_path, depth):
    writers = random_ring(tmp_path, depth=depth, num_cells=5, slabs=3)
    message = draw_batch(writers, 5, (4, 32))
    batch = SlabReader(SlabFolder(tmp_path)).read(message)
    for sample in range(128):
        cell, t, n, obs, following = naive_sample(writers, message, sample, depth)
        if depth == 1:
            obs, following = obs[0], following[0]
        np.testing.assert_array_equal(batch["obs/x"][sample], obs)
        if not cell["interrupted"][t, n]:
            np.testing.assert_array_equal(batch["next_obs/x"][sample], following)
        for name in ("action", "reward", "num_steps", "terminated", "truncated", "version", "log_prob"):
            np.testing.assert_array_equal(batch[name][sample], cell[name][t, n])
        assert batch["valid"][sample] == (not cell["interrupted"][t, n])


def naive_stretch(cell, t, n, n_step):
    """(rewards of executed steps, time of its last decision), decision by decision."""
    rewards, at = [], t
    while True:
        rewards += cell["reward"][at, n, : cell["num_steps"][at, n]].tolist()
        over = cell["terminated"][at, n] or cell["truncated"][at, n] or cell["interrupted"][at, n]
        following = at + 1
        if over or following == cell["lengths"][n] or following == t + n_step:
            return rewards, at
        lost = cell["truncated"][following, n] and not cell["terminated"][following, n]
        if cell["interrupted"][following, n] or (lost and cell["final_slot"][following, n] < 0):
            return rewards, at
        at = following


@pytest.mark.parametrize("depth", [1, 3])
def test_stretches_of_several_decisions_equal_a_loop(tmp_path, depth):
    writers = random_ring(tmp_path, depth=depth, num_cells=5, slabs=3)
    for writer in writers:
        for index in range(5):
            cell = writer.cell(index)
            cell["lengths"][...] = [6, 5, 6]
            cell["final_slot"][3, 2], cell["truncated"][3, 2], cell["terminated"][3, 2] = -1, True, False
    message = draw_batch(writers, 5, (4, 64))
    message.time %= 5
    batch = SlabReader(SlabFolder(tmp_path), 3).read(message)
    for sample in range(256):
        cell, t, n, obs, _ = naive_sample(writers, message, sample, depth)
        rewards, last = naive_stretch(cell, t, n, 3)
        num = batch["n_step_num"][sample]
        assert batch["n_step_reward"][sample, :num].tolist() == rewards
        assert not batch["n_step_reward"][sample, num:].any()
        message.time.ravel()[sample], first = last, t
        *_, following = naive_sample(writers, message, sample, depth)
        message.time.ravel()[sample] = first
        np.testing.assert_array_equal(batch["obs/x"][sample], obs[0] if depth == 1 else obs)
        if not cell["interrupted"][last, n]:
            np.testing.assert_array_equal(
                batch["next_obs/x"][sample], following[0] if depth == 1 else following
            )
        for name in ("terminated", "truncated", "interrupted"):
            assert batch[name][sample] == cell[name][last, n]
        for name in ("action", "reward", "num_steps"):
            np.testing.assert_array_equal(batch[name][sample], cell[name][t, n])
        lost = cell["truncated"][t, n] and not cell["terminated"][t, n] and cell["final_slot"][t, n] < 0
        assert batch["valid"][sample] == (not cell["interrupted"][t, n] and not lost)


def test_n_step_rewards_and_discounts_by_hand():
    """Two decisions, of two steps and of one: R = 1 + g 2 + g^2 4, discount g^3; 0 where it terminated."""
    batch = {
        "num_steps": torch.tensor([2, 2]), "reward": torch.zeros(2, 2), "valid": torch.tensor([True, True]),
        "n_step_num": torch.tensor([3, 3]), "n_step_reward": torch.tensor([[1.0, 2.0, 4.0, 9.0]] * 2),
        "terminated": torch.tensor([False, True]), "interrupted": torch.tensor([False, False]),
    }  # fmt: skip
    label_returns(batch, 0.5)
    assert batch["decision_reward"].tolist() == [3.0, 3.0] and batch["discount"].tolist() == [0.125, 0.0]


def closeness(achieved, goal):
    """A reward that a test can check, and an end where it is small."""
    distance = np.abs(achieved - goal).sum(1)
    return -distance, distance < 0.5


@pytest.mark.parametrize("depth", [1, 3])
def test_hindsight_gives_goals_that_the_episode_reached_later(tmp_path, depth):
    writers = random_ring(tmp_path, depth=depth, num_cells=5, slabs=3, chunk_length=1)
    message = draw_batch(writers, 5, (4, 64))
    settings = Hindsight(goal="x", achieved="x", reward=f"{__name__}:closeness", fraction=0.5)
    batch = SlabReader(SlabFolder(tmp_path), hindsight=settings).read(message)
    plain = SlabReader(SlabFolder(tmp_path)).read(message)
    changed = (batch["obs/x"] != plain["obs/x"]).flatten(1).any(1).numpy()
    assert 90 < changed.sum() < 166
    for sample in np.flatnonzero(changed & batch["valid"].numpy()):
        cell, t, n, _, following = naive_sample(writers, message, sample, depth)
        _, last = naive_stretch(cell, t, n, 99)
        reached = []
        for later in range(t, last + 1):
            message.time.ravel()[sample] = later
            reached.append(naive_sample(writers, message, sample, depth)[4][-1])
        message.time.ravel()[sample] = t
        goal = batch["obs/x"][sample].numpy().reshape(depth, -1)
        assert (goal == goal[0]).all() and any(np.array_equal(goal[0], each) for each in reached)
        np.testing.assert_array_equal(batch["next_obs/x"][sample].numpy().reshape(depth, -1), goal)
        reward, terminated = closeness(following[-1:], goal[:1])
        assert batch["reward"][sample, 0].item() == pytest.approx(reward[0], abs=1e-5)
        assert batch["terminated"][sample].item() == terminated[0]
        np.testing.assert_array_equal(batch["action"][sample], plain["action"][sample])
    same = torch.from_numpy(~changed)
    torch.testing.assert_close(batch["reward"][same], plain["reward"][same])
    again = SlabReader(SlabFolder(tmp_path), hindsight=settings).read(message)
    torch.testing.assert_close(again["obs/x"], batch["obs/x"])


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"goal": "nothing"}, "'nothing' is no observation"),
        ({"reward": "no.such:thing"}, "no module"),
        ({"reward": f"{__name__}:torch"}, "no function"),
    ],
)
def test_hindsight_that_cannot_be_is_refused(tmp_path, change, match):
    writers = random_ring(tmp_path, depth=1, num_cells=2, slabs=1, chunk_length=1)
    given = {"goal": "x", "achieved": "x", "reward": f"{__name__}:closeness"} | change
    with pytest.raises(ConfigError, match=match):
        SlabReader(SlabFolder(tmp_path), hindsight=Hindsight(**given)).read(draw_batch(writers, 2, (1, 8)))


def test_overwritten_cells_make_their_samples_invalid(tmp_path):
    writers = random_ring(tmp_path, depth=1, num_cells=4, slabs=2)
    message = draw_batch(writers, 4, (2, 64))
    reader = SlabReader(SlabFolder(tmp_path))
    writers[1].generation(2, 999)
    (tmp_path / "slab-0").unlink()
    batch = reader.read(message)
    slab = message.chunk_slab[message.chunk.ravel()]
    cell = message.chunk_offset[message.chunk.ravel()] // writers[0].layout.cell_bytes
    readable = (slab == 1) & (cell != 2)
    assert batch["valid"].any() and not batch["valid"].numpy()[~readable].any()
    expected = readable & ~batch["interrupted"].numpy()
    np.testing.assert_array_equal(batch["valid"], expected)
    assert reader.stale_chunks == len(np.unique(message.chunk.ravel()[~readable]))
    for index in range(4):
        writers[1].generation(index, 999)
    with pytest.raises(StaleRead):
        reader.read(message)


def test_a_truncation_without_its_final_observation_is_invalid(tmp_path):
    writers = random_ring(tmp_path, depth=1, num_cells=2, slabs=1)
    cell = writers[0].cell(0)
    cell["interrupted"][...], cell["terminated"][...], cell["truncated"][...] = False, False, True
    cell["final_slot"][...] = -1
    message = draw_batch(writers, 2, (1, 64))
    batch = SlabReader(SlabFolder(tmp_path)).read(message)
    lost = message.chunk_offset[message.chunk.ravel()] == 0
    assert lost.any() and not batch["valid"].numpy()[lost].any()


def test_episodes_of_a_replay_are_reported_once(tmp_path):
    writers = random_ring(tmp_path, depth=1, num_cells=3, slabs=1)
    message = draw_batch(writers, 3, (1, 8))
    reader = SlabReader(SlabFolder(tmp_path))
    expected = []
    for index in range(3):
        cell = writers[0].cell(index)
        ended = (cell["terminated"] | cell["truncated"]) & (cell["final_slot"] >= 0)
        expected += cell["final_return"][cell["final_slot"][ended]].tolist()
    first = reader.read(message)
    assert sorted(first["final_return"].tolist()) == sorted(expected)
    assert describe(first, 0, SPEC)["episodes"] == len(expected)
    assert describe(reader.read(message), 0, SPEC)["episodes"] == 0
    writers[0].generation(1, 500)
    message.chunk_generation[message.chunk_offset == writers[0].layout.cell_bytes] = 500
    again = writers[0].cell(1)
    ended = (again["terminated"] | again["truncated"]) & (again["final_slot"] >= 0)
    assert describe(reader.read(message), 0, SPEC)["episodes"] == ended.sum()
