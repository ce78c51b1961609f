"""Slabs to tensors: right values by hand, and against loops that share no code."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from learner_kit import SPEC, SlabWriter, fill_counting, make_layout

from rollbus_core.columns import HEADER_BYTES
from rollbus_core.slabs import SlabFolder
from rollbus_core.weights.digests import BEST, digest
from rollbus_learner.batch_metrics import describe, executed_steps
from rollbus_learner.gather import SlabReader
from rollbus_wire.errors import StaleRead
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


def read_drawn(folder, slab):
    """Decisions 1 and 0 of the slab's only row."""
    slab.generation(0, 1)
    message = Batch(
        "train", 1, [], total_steps=2, chunk=np.zeros((1, 2), np.int32), time=np.array([[1, 0]], np.int32),
        row=np.zeros((1, 2), np.int32), slabs=[slab.item], chunk_slab=np.zeros(1, np.int32),
        chunk_offset=np.zeros(1, np.int64), chunk_generation=np.ones(1, np.uint64),
    )  # fmt: skip
    return SlabReader(SlabFolder(folder)).read(message)


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
