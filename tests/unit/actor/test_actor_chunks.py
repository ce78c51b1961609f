"""What stands in a chunk, by hand, on the toy counter stream."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from actor_kit import SPEC, CounterEngine, Rig, ScriptedHub, decisions, feed, stream_of

from rollbus_actor.chunks import chunk_layout
from rollbus_wire.errors import ConfigError


def test_a_chunk_by_hand(tmp_path: Path) -> None:
    rig = Rig(tmp_path, [ScriptedHub([3, 5])], feed=feed(4))
    rig.run(lambda: rig.store.chunks)
    chunk, commit = rig.store.chunks[0], rig.store.commits[0]
    assert chunk["lengths"].tolist() == commit.lengths.tolist() == [4, 4]
    assert chunk["obs/x"][:, 0].tolist() == [[0, 0, 0], [0, 0, 1], [0, 0, 2], [0, 1, 0], [0, 1, 1]]
    assert chunk["obs/x"][:, 1, 2].tolist() == [0, 1, 2, 3, 4]
    assert chunk["action"].tolist() == [[0, 0], [1, 1], [2, 2], [0, 3]]
    assert chunk["log_prob"].tolist() == [[0, 0], [-1, -1], [-2, -2], [0, -3]]
    assert chunk["reward"][..., 0].tolist() == [[1, 1], [2, 2], [3, 3], [1, 4]]
    assert chunk["num_steps"].tolist() == [[1, 1]] * 4
    assert chunk["terminated"].tolist() == [[False, False], [False, False], [True, False], [False, False]]
    assert not chunk["truncated"].any() and not chunk["interrupted"].any()
    assert chunk["final_slot"].tolist() == [[-1, -1], [-1, -1], [0, -1], [-1, -1]]
    assert chunk["episode"].tolist() == [[0, 0], [0, 0], [0, 0], [1, 0]]
    assert chunk["step"].tolist() == [[0, 0], [1, 1], [2, 2], [0, 3]]
    assert (chunk["version"] == 1).all() and not chunk["source"].any()
    assert commit.num_finals == 1
    assert chunk["final_obs/x"][0].tolist() == [0, 0, 3]
    assert (chunk["final_return"][0], chunk["final_length"][0]) == (4.5, 3)
    assert (chunk["final_success_once"][0], chunk["final_success_at_end"][0]) == (1, -1)
    assert chunk["last_step"].tolist() == [1, 4]
    assert commit.oldest == commit.newest == [0, 1] and commit.order == [0, 0]


@pytest.mark.parametrize("num_decisions", [1, 2, 4, 5, 64])
def test_episodes_go_on_over_chunk_borders(tmp_path: Path, num_decisions: int) -> None:
    rig = Rig(tmp_path, [ScriptedHub([7, 3, 1])], feed=feed(num_decisions))
    rig.run(lambda: len(decisions(rig.store.chunks, 0)) >= 64)
    for row, length in enumerate([7, 3, 1]):
        found = decisions(rig.store.chunks, row)
        assert found == stream_of(length, len(found))


@pytest.mark.parametrize("num_decisions", [1, 3, 4, 16])
def test_rows_may_be_missing_in_ticks(tmp_path: Path, num_decisions: int) -> None:
    late = {0: [1], 1: [], 2: [0], 3: [0, 1], 4: [], 5: [2], 6: [1, 2]}
    hub = ScriptedHub([4, 6, 9], late=lambda tick: late[tick % 7])
    rig = Rig(tmp_path, [hub], feed=feed(num_decisions))
    rig.run(lambda: len(rig.store.chunks) >= 8 and len(decisions(rig.store.chunks, 0)) >= 30)
    for row, length in enumerate([4, 6, 9]):
        found = decisions(rig.store.chunks, row)
        assert found == stream_of(length, len(found)), f"row {row}: nothing is lost, nothing is twice"
    uneven = [c for c in rig.store.chunks if len(set(c["lengths"].tolist())) > 1]
    assert uneven or num_decisions == 1
    for chunk in rig.store.chunks:
        for row, length in enumerate(chunk["lengths"]):
            assert not chunk["obs/x"][length + 1 if length else 0 :, row].any()
            for name in ("action", "reward", "version", "episode", "log_prob", "num_steps", "terminated"):
                assert not chunk[name][length:, row].any(), name
            assert (chunk["final_slot"][length:, row] == -1).all()


def test_finals_overflow_cuts_the_chunk(tmp_path: Path) -> None:
    # 64 decisions x 2 rows have room for 64 finals; every step ends an episode on both rows.
    rig = Rig(tmp_path, [ScriptedHub([1, 1])], feed=feed(64))
    rig.run(lambda: len(rig.store.chunks) >= 3)
    for chunk, commit in zip(rig.store.chunks, rig.store.commits, strict=True):
        assert chunk["lengths"].tolist() == [32, 32] and commit.num_finals == 64
        assert sorted(chunk["final_slot"][:32].ravel().tolist()) == list(range(64))
    found = decisions(rig.store.chunks, 1)
    assert found == stream_of(1, 96)


def test_small_chunks_have_room_for_any_number_of_finals(tmp_path: Path) -> None:
    rig = Rig(tmp_path, [ScriptedHub([1, 1])], feed=feed(8))
    rig.run(lambda: len(rig.store.chunks) >= 2)
    for chunk, commit in zip(rig.store.chunks, rig.store.commits, strict=True):
        assert chunk["lengths"].tolist() == [8, 8] and commit.num_finals == 16


def test_a_ticket_may_be_for_less(tmp_path: Path) -> None:
    rig = Rig(tmp_path, [ScriptedHub([5, 5])], feed=feed(16))
    rig.store.limit = 3
    rig.run(lambda: len(rig.store.chunks) >= 4)
    assert {tuple(c["lengths"]) for c in rig.store.chunks} == {(3, 3)}
    assert rig.store.chunks[0]["action"].shape == (16, 2)
    assert decisions(rig.store.chunks, 0) == stream_of(5, 12)


def test_equal_chunks_in_used_cells_have_equal_bytes(tmp_path: Path) -> None:
    rig = Rig(tmp_path, [ScriptedHub([4, 4])], feed=feed(4))
    rig.run(lambda: len(rig.store.commits) >= 2)
    first = rig.store.chunks[0]
    for name, value in rig.store.chunks[1].items():
        if name.startswith("obs/") or name in ("episode", "final_obs/x"):
            continue
        assert np.array_equal(value, first[name]), name


def test_frame_stacks(tmp_path: Path) -> None:
    engine = CounterEngine(frame_stack=3)
    rig = Rig(tmp_path, [ScriptedHub([3, 4], frame_stack=3)], engine=engine, feed=feed(5))
    rig.run(lambda: len(rig.store.chunks) >= 2)
    # Step of the three frames of row 0 (episodes of 3), newest last; an episode repeats its first.
    seen = [call["x"][0, :, 2].tolist() for call in engine.calls[:5]]
    assert seen == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [0, 0, 0], [0, 0, 1]]
    first, second = rig.store.chunks[:2]
    assert first["obs/x"].shape == (2 + 5 + 1, 2, 3)
    assert first["obs/x"][:, 0, 2].tolist() == [0, 0, 0, 1, 2, 0, 1, 2]
    # The second chunk begins at (episode 1, step 2): the two frames before are its history.
    assert second["obs/x"][:3, 0, 2].tolist() == [0, 1, 2]
    assert second["obs/x"][:3, 0, 1].tolist() == [1, 1, 1]
    assert second["obs/x"][:3, 1, 2].tolist() == [0, 0, 1]
    assert decisions(rig.store.chunks, 0) == stream_of(3, 10)


def test_values_close_the_chunk(tmp_path: Path) -> None:
    rig = Rig(tmp_path, [ScriptedHub([3, 5])], feed=feed(4, ("log_prob", "value")))
    rig.run(lambda: len(rig.store.chunks) >= 2)
    first, second = rig.store.chunks[:2]
    assert first["value"].tolist() == [[0, 0], [1, 1], [2, 2], [10, 3]]
    # V(last) of (episode 1, step 1) and (0, 4); V(final) of (episode 0, step 3).
    assert first["last_value"].tolist() == [11, 4]
    assert first["final_value"][0] == 3
    assert second["last_value"].tolist() == [22, 13]
    assert second["final_value"][: rig.store.commits[1].num_finals].tolist() == [5, 13]


def test_action_repeat_widens_the_reward(tmp_path: Path) -> None:
    rig = Rig(tmp_path, [ScriptedHub([4, 4], repeat=3)], feed=feed(4))
    rig.run(lambda: len(rig.store.chunks) >= 2)
    chunk = rig.store.chunks[0]
    assert chunk["reward"].shape == (4, 2, 3)
    assert chunk["reward"][:, 0].tolist() == [[1, 1, 1], [2, 2, 2], [3, 3, 3], [4, 4, 4]]
    assert decisions(rig.store.chunks, 1) == stream_of(4, 8)


def test_an_interrupted_decision_counts_but_not_as_an_outcome(tmp_path: Path) -> None:
    hub = ScriptedHub([10, 10])
    rig = Rig(tmp_path, [hub], feed=feed(4))
    rig.run(lambda: len(hub.acts) == 2)
    hub.paused = True
    rig.run(lambda: len(hub.acts) == 3)
    # Row 1's step was lost: the hub begins another episode on it.
    hub.outcome["num_steps"][1], hub.outcome["reward"][1] = 0, 0
    hub.outcome["interrupted"][1] = True
    hub.episode[1], hub.step[1] = 7, 0
    hub.paused = False
    hub.send_tick(np.arange(2))
    rig.run(lambda: rig.store.chunks)
    chunk = rig.store.chunks[0]
    assert chunk["lengths"].tolist() == [4, 4]
    assert chunk["interrupted"].tolist() == [[False, False], [False, False], [False, True], [False, False]]
    assert chunk["num_steps"][2].tolist() == [1, 0]
    assert chunk["episode"][:, 1].tolist() == [0, 0, 0, 7]
    assert chunk["obs/x"][3, 1].tolist() == [1, 7, 0]


def test_a_decision_whose_outcome_never_comes_is_erased(tmp_path: Path) -> None:
    hub = ScriptedHub([10, 10])
    rig = Rig(tmp_path, [hub], feed=feed(4))
    rig.run(lambda: len(hub.acts) == 2)
    hub.paused = True
    rig.run(lambda: len(hub.acts) == 3)
    hub.outcome["num_steps"][1] = 0
    hub.paused = False
    hub.send_tick(np.arange(2))
    rig.run(lambda: len(rig.store.chunks) >= 1)
    chunk = rig.store.chunks[0]
    assert chunk["lengths"].tolist() == [3, 2]
    assert not chunk["version"][2:, 1].any()
    assert chunk["obs/x"][:3, 1, 2].tolist() == [0, 1, 3]


def test_without_shared_memory_the_cell_travels(tmp_path: Path) -> None:
    rig = Rig(tmp_path, [ScriptedHub([3, 5])], feed=feed(4), slabs=None)
    rig.run(lambda: rig.store.waiting or rig.store.open)
    sent = []
    rig.store._commit = lambda envelope, commit: sent.append(commit)  # type: ignore[method-assign]
    rig.run(lambda: sent)
    layout, _ = rig.store.open[sent[0].ticket]
    views = layout.views(sent[0].cell)
    assert sent[0].cell.size == layout.cell_bytes
    assert views["obs/x"][:, 1, 2].tolist() == [0, 1, 2, 3, 4]


def test_an_extra_that_the_policy_lacks_is_an_error() -> None:
    engine = CounterEngine()
    with pytest.raises(ConfigError, match="entropy"):
        chunk_layout(
            SPEC, engine.spec, feed(4, ("entropy",)), num_rows=2, chunk_length=1, frame_stack=1
        )  # fmt: skip
