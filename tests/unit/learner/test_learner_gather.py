"""Slabs to tensors: right values by hand, and against loops that share no code."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from learner_kit import SPEC, SlabWriter, fill_counting, make_layout

from rollbus_core.columns import HEADER_BYTES
from rollbus_core.feed import Hindsight
from rollbus_core.slabs import SlabFolder
from rollbus_core.weights.digests import BEST, digest
from rollbus_learner.algorithms._replay import label_returns
from rollbus_learner.batch_metrics import describe, executed_steps
from rollbus_learner.gather import SlabReader
from rollbus_wire.errors import ConfigError, StaleRead
from rollbus_wire.messages import Batch


def read(folder, *items):
    return SlabReader(SlabFolder(folder)).read(Batch("train", 1, list(items)))


def test_two_chunks_of_different_lengths(tmp_path):
    slab = SlabWriter(tmp_path, make_layout(3, 2), 2)
    first, second = slab.cell(0), slab.cell(1)
    fill_counting(first, 100.0)
    fill_counting(second, 200.0)
    first["reward"][:, :, 0] = [[1, 2], [3, 4], [5, 6]]
    second["reward"][:, :, 0] = [[7, 8], [9, 99], [99, 99]]
    second["last_step"][:] = [7, 6]
    second["step"][0] = 0
    # Row 0 of the first ends by truncation at t 1, row 0 of the second terminates at t 0.
    first["final_slot"][1, 0], first["truncated"][1, 0] = 1, True
    first["final_slot"][0, 1], first["interrupted"][0, 1] = 0, True
    first["final_obs/x"][:2] = [-1, -2]
    first["final_return"][:2] = [50, 60]
    second["final_slot"][0, 0], second["terminated"][0, 0] = 0, True
    second["final_slot"][2, 1] = 3  # stale, beyond the length
    second["terminated"][1, 1] = True  # the same
    second["final_obs/x"][:1] = -3
    second["final_return"][:1] = 70
    second["final_success_once"][:1] = 1
    first["final_success_once"][:2] = [0, -1]
    batch = read(
        tmp_path,
        slab.chunk(1, [2, 1], finals=1, slice="b", order=(9, 0)),
        slab.chunk(0, [3, 3], finals=2, slice="a", order=(4, 0)),
    )
    assert batch["lengths"].tolist() == [3, 3, 2, 1]
    assert batch["valid"].tolist() == [
        [True, False, True, True],
        [True, True, True, False],
        [True, True, False, False],
    ]
    assert batch["reward"][..., 0].tolist() == [[1, 2, 7, 8], [3, 4, 9, 0], [5, 6, 0, 0]]
    assert batch["obs/x"].tolist() == [
        [100, 101, 200, 201],
        [110, 111, 210, 211],
        [120, 121, 220, 0],
        [130, 131, 0, 0],
    ]
    assert batch["final_obs/x"].tolist() == [-1, -2, -3]
    assert batch["final_slot"].tolist() == [[-1, 0, 2, -1], [1, -1, -1, -1], [-1, -1, -1, -1]]
    assert batch["terminated"].sum() == 1 and batch["terminated"][0, 2]
    assert batch["start"].tolist() == [[False, False, True, True]] + [[False] * 4] * 2
    assert all(isinstance(column, torch.Tensor) for column in batch.values())
    assert executed_steps(batch) == 8
    found = describe(batch, 3, SPEC)
    assert found["samples"] == 8 and found["invalid"] == 1
    assert found["episodes"] == 2 and found["return_mean"] == 65.0 and found["success_rate"] == 1.0
    assert found["lag_mean"] == 3.0


def test_order_is_by_slice_and_episode_not_by_arrival(tmp_path):
    slab = SlabWriter(tmp_path, make_layout(2, 1), 3)
    for index in range(3):
        fill_counting(slab.cell(index), 100.0 * index)
    items = [
        slab.chunk(0, [2], slice="b", order=(1, 0)),
        slab.chunk(1, [2], slice="a", order=(7, 4)),
        slab.chunk(2, [2], slice="a", order=(7, 0)),
    ]
    assert read(tmp_path, *items)["obs/x"][0].tolist() == [200, 100, 0]
    assert read(tmp_path, *items[::-1])["obs/x"][0].tolist() == [200, 100, 0]


def test_frame_stack_over_an_episode_border(tmp_path):
    """K 3; row 0's episode ends at t 1 by termination, row 1 begins its episode with the chunk."""
    slab = SlabWriter(tmp_path, make_layout(4, 2, history=2), 1)
    cell = slab.cell(0)
    cell["final_slot"][...] = -1
    # Frames: history h0 h1, then observations; action repeat 4, so that step is not the decision's number.
    cell["obs/x"][:, 0] = [1, 2, 3, 4, 50, 51, 52]
    cell["obs/x"][:, 1] = [80, 80, 80, 81, 82, 83, 84]
    cell["step"][:, 0] = [40, 44, 0, 4]
    cell["step"][:, 1] = [0, 4, 8, 12]
    cell["last_step"][:] = [8, 16]
    cell["terminated"][1, 0], cell["final_slot"][1, 0] = True, 0
    cell["final_obs/x"][0] = 5
    cell["truncated"][0, 1], cell["final_slot"][0, 1] = True, 1
    cell["final_obs/x"][1] = 99
    batch = read(tmp_path, slab.chunk(0, [4, 4], finals=2))
    assert batch["obs/x"][:, 0].tolist() == [[1, 2, 3], [2, 3, 4], [50, 50, 50], [50, 50, 51], [50, 51, 52]]
    assert batch["obs/x"][:, 1].tolist() == [
        [80, 80, 80],
        [80, 80, 81],
        [80, 81, 82],
        [81, 82, 83],
        [82, 83, 84],
    ]
    assert batch["final_obs/x"].tolist() == [[3, 4, 5], [80, 80, 99]]


def test_carry_becomes_state(tmp_path):
    slab = SlabWriter(tmp_path, make_layout(2, 2, carry=12), 1)
    fill_counting(slab.cell(0), 0.0)
    slab.cell(0)["carry"][...] = np.arange(6, dtype=np.float32).view(np.uint8).reshape(2, 12)
    batch = read(tmp_path, slab.chunk(0, [2, 2]))
    assert batch["state"].tolist() == [[0, 1, 2], [3, 4, 5]] and "carry" not in batch


def test_a_freed_chunk_is_left_out_and_counted(tmp_path):
    slab = SlabWriter(tmp_path, make_layout(2, 1), 2)
    for index in range(2):
        fill_counting(slab.cell(index), 100.0 * index)
    items = [slab.chunk(0, [2], generation=4), slab.chunk(1, [2], generation=5)]
    gone = SlabWriter(tmp_path, make_layout(2, 1), 1, slab=7)
    items.append(gone.chunk(0, [2]))
    gone_file = tmp_path / "slab-7"
    gone_file.unlink()
    slab.generation(0, 6)
    reader = SlabReader(SlabFolder(tmp_path))
    batch = reader.read(Batch("train", 1, items))
    assert batch["obs/x"][0].tolist() == [100] and reader.stale_chunks == 2
    slab.generation(1, 7)
    with pytest.raises(StaleRead, match="none of 3 chunks"):
        reader.read(Batch("train", 2, items))


def test_a_chunk_whose_bytes_changed_is_left_out_and_counted(tmp_path):
    slab = SlabWriter(tmp_path, make_layout(4, 1), 2)
    items = []
    for index in range(2):
        fill_counting(slab.cell(index), 100.0 * (index + 1))
        item = slab.chunk(index, [4], order=(index, 0))
        start = index * slab.layout.cell_bytes
        content = memoryview(slab.buffer)[start + HEADER_BYTES : start + slab.layout.cell_bytes]
        items.append(item | {"digest": digest(content), "digest_kind": BEST})
    reader = SlabReader(SlabFolder(tmp_path))
    assert reader.read(Batch("train", 1, items))["obs/x"].shape[1] == 2
    slab.cell(0)["reward"][2, 0] += 1e-3
    batch = reader.read(Batch("train", 2, items))
    assert batch["obs/x"][0].tolist() == [200] and reader.unread == {0: "corrupt"}
    assert (reader.corrupt_chunks, reader.stale_chunks) == (1, 0)
    slab.cell(1)["step"][0, 0] += 1
    with pytest.raises(StaleRead, match="corrupt"):
        reader.read(Batch("train", 3, items))


def test_buffers_are_used_again_without_traces(tmp_path):
    slab = SlabWriter(tmp_path, make_layout(3, 2), 2)
    for index in range(2):
        fill_counting(slab.cell(index), 100.0)
        slab.cell(index)["final_slot"][...] = 0
        slab.cell(index)["terminated"][...] = True
        slab.cell(index)["interrupted"][1] = True
    reader = SlabReader(SlabFolder(tmp_path))
    whole, short = [slab.chunk(i, [3, 3], finals=1) for i in range(2)], slab.chunk(1, [1, 2], finals=1)
    reader.read(Batch("train", 1, whole))
    after = {k: v.clone() for k, v in reader.read(Batch("train", 2, [whole[0], short])).items()}
    fresh = SlabReader(SlabFolder(tmp_path)).read(Batch("train", 2, [whole[0], short]))
    assert set(after) == set(fresh)
    assert all(torch.equal(after[name], fresh[name]) for name in fresh)


@pytest.mark.parametrize("drawn", [False, True])
def test_log_probs_of_several_actions_are_summed_over_executed_ones(tmp_path, drawn):
    layout = make_layout(2, 1, chunk_length=3, extras={"log_prob": ("float32", (3,))})
    slab = SlabWriter(tmp_path, layout, 1)
    fill_counting(slab.cell(0), 0.0)
    slab.cell(0)["log_prob"][:, 0] = [[1, 10, 100], [2, 20, 200]]
    slab.cell(0)["num_steps"][:, 0] = [3, 2]
    slab.cell(0)["lengths"][...] = 2
    if drawn:
        batch = read_drawn(tmp_path, slab)
        assert batch["log_prob"].tolist() == [22.0, 111.0]
    else:
        assert read(tmp_path, slab.chunk(0, [2]))["log_prob"].tolist() == [[111.0], [22.0]]


def read_drawn(folder, slab):
    """Decisions 1 and 0 of the slab's only row."""
    slab.generation(0, 1)
    message = Batch(
        "train", 1, [], total_steps=2, chunk=np.zeros((1, 2), np.int32), time=np.array([[1, 0]], np.int32),
        row=np.zeros((1, 2), np.int32), slabs=[slab.item], chunk_slab=np.zeros(1, np.int32),
        chunk_offset=np.zeros(1, np.int64), chunk_generation=np.ones(1, np.uint64),
    )  # fmt: skip
    return SlabReader(SlabFolder(folder)).read(message)


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
