"""Transitions over chunk borders: however an episode is cut, n-step returns and goals are the same."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learner_kit import SlabWriter

from rollbus_broker.store.records import Cell, Chunk
from rollbus_broker.store.step_index import StepIndex
from rollbus_core.columns import Layout, chunk_columns
from rollbus_core.feed import Hindsight
from rollbus_core.slabs import SlabFolder
from rollbus_core.version import Version
from rollbus_learner.algorithms._replay import label_returns
from rollbus_learner.gather import SlabReader
from rollbus_wire.errors import StaleRead
from rollbus_wire.messages import Batch

GENERATION = 7


@dataclass
class Decision:
    """One decision of a row: it was at ``place``, and came to ``then``."""

    episode: int
    step: int
    place: float
    then: float
    rewards: list[float]
    end: str = ""


def stream(*episodes: tuple[int, str], seed: int = 0) -> list[Decision]:
    """Decisions of one row: so many per episode, which ends so ("" : it is still running)."""
    draw, found = np.random.default_rng(seed), []
    for number, (length, end) in enumerate(episodes):
        step = 0
        for index in range(length):
            rewards = draw.normal(size=draw.integers(1, 3)).astype(np.float32).tolist()
            place = 100.0 * number + index
            last = end if index == length - 1 else ""
            found.append(Decision(1000 * seed + number, step, place, place + 1, rewards, last))
            step += len(rewards)
    return found


class Table:
    """Rows of decisions cut into chunks, in slabs and in the index of a real replay table."""

    def __init__(
        self, folder: Path, rows: list[list[Decision]], cuts: list[list[int]], width: int = 2
    ) -> None:
        """``cuts`` [chunk][row]: decisions of each row in each chunk."""
        size, num = max(map(max, cuts)), len(rows)
        box, sizes = ("float32", (1,)), {"num_decisions": size, "num_rows": num, "num_finals": size * num}
        columns = chunk_columns({"x": box, "goal": box}, box, num_history=0, chunk_length=width, **sizes)
        self.layout = Layout.build(columns, num_history=0, **sizes)
        # Two slabs, so that stretches go from one into the other.
        self.writers = [SlabWriter(folder, self.layout, len(cuts), slab=number) for number in range(2)]
        self.folder, self.index, self.chunks = SlabFolder(folder), StepIndex(), []
        begin = [0] * num
        for number, lengths in enumerate(cuts):
            cell = self.writers[number % 2].cell(number)
            cell["lengths"][:], cell["final_slot"][...] = lengths, -1
            slots = iter(range(size * num))
            for row, length in enumerate(lengths):
                part = rows[row][begin[row] : begin[row] + length]
                begin[row] += length
                for time, decision in enumerate(part):
                    write(cell, time, row, decision, slots)
                following = rows[row][begin[row]] if begin[row] < len(rows[row]) else None
                cell["obs/x"][length, row] = following.place if following else part[-1].then if part else 0
                cell["last_step"][row] = following.step if following else self.after(part)
            self.add(number, lengths)

    @staticmethod
    def after(part: list[Decision]) -> int:
        return part[-1].step + len(part[-1].rewards) if part and not part[-1].end else 0

    def add(self, number: int, lengths: list[int]) -> None:
        self.writers[number % 2].generation(number, GENERATION)
        cell = Cell(number % 2, number * self.layout.cell_bytes, GENERATION)
        at = Version(1, 0)
        chunk = Chunk(number + 1, number, cell, "hub/0", np.array(lengths, np.int32), 0, 0, at, at)
        self.chunks.append(chunk)
        self.index.append(chunk)

    def every_step(self, ahead: int, index: StepIndex | None = None) -> Batch:
        """A draw that has each step of the table once."""
        index = self.index if index is None else index
        draw = index._places(index._dropped_steps + np.arange(len(index)), ahead)
        return Batch(
            "train", 1, [], chunk=draw.chunk[None], time=draw.time[None], row=draw.row[None],
            slabs=[writer.item for writer in self.writers], chunk_slab=draw.slab.astype(np.int32),
            chunk_offset=draw.offset, chunk_generation=draw.generation, chunk_following=draw.following,
        )  # fmt: skip

    def transitions(self, n_step: int, index: StepIndex | None = None) -> dict[tuple[int, int], tuple]:
        """(episode, step) -> (rewards, place after, terminated, truncated) of all that are valid."""
        batch = SlabReader(self.folder, n_step).read(self.every_step(n_step - 1, index))
        found = {}
        for s in np.flatnonzero(batch["valid"]):
            rewards = batch["n_step_reward"][s, : batch["n_step_num"][s]].tolist()
            assert not batch["n_step_reward"][s, len(rewards) :].any()
            ends = [batch[name][s].item() for name in ("next_obs/x", "terminated", "truncated")]
            found[int(batch["episode"][s]), int(batch["step"][s])] = (rewards, *ends)
        return found


def write(cell, time: int, row: int, decision: Decision, slots) -> None:
    at = (time, row)
    cell["obs/x"][at] = decision.place
    cell["episode"][at], cell["step"][at] = decision.episode, decision.step
    cell["num_steps"][at] = len(decision.rewards)
    cell["reward"][at][: len(decision.rewards)] = decision.rewards
    kind = "truncated" if decision.end == "lost" else decision.end
    if kind:
        cell[kind][at] = True
    if decision.end in ("terminated", "truncated"):
        cell["final_slot"][at] = slot = next(slots)
        cell["final_obs/x"][slot] = decision.then


def by_a_loop(rows: list[list[Decision]], n_step: int) -> dict[tuple[int, int], tuple]:
    """The same transitions from the rows as they are, decision by decision."""
    found = {}
    for row in rows:
        for begin, decision in enumerate(row):
            if decision.end in ("interrupted", "lost"):
                continue
            end, rewards = begin, list(decision.rewards)
            for following in row[begin + 1 : begin + n_step]:
                if row[end].end or following.end in ("interrupted", "lost"):
                    break
                end += 1
                rewards += following.rewards
            last = row[end]
            found[decision.episode, decision.step] = (
                rewards, last.then, last.end == "terminated", last.end == "truncated",
            )  # fmt: skip
    return found


ENDS = st.sampled_from(["terminated", "truncated", "interrupted", "lost"])
EPISODES = st.lists(st.tuples(st.integers(1, 12), ENDS), min_size=1, max_size=3)


@settings(max_examples=60, deadline=None)
@given(st.lists(EPISODES, min_size=1, max_size=3), st.integers(2, 8), st.data())
def test_however_rows_are_cut_the_transitions_are_the_same(episodes, n_step, data):
    rows = [stream(*each, (2, ""), seed=number) for number, each in enumerate(episodes)]
    expected = by_a_loop(rows, n_step)
    sizes = st.lists(st.sampled_from([0, 1, 2, 3, 7]), min_size=len(rows), max_size=len(rows))
    left, cuts = np.array([len(row) for row in rows]), []
    while left.any():
        taken = np.minimum(data.draw(sizes), left)
        if not taken.any():
            taken = np.minimum(1, left)
        cuts.append(taken.tolist())
        left = left - taken
    with tempfile.TemporaryDirectory() as folder:
        assert Table(Path(folder), rows, cuts).transitions(n_step) == expected


@pytest.mark.parametrize("size", [1, 2, 3, 7, 20])
def test_chunks_of_any_size_give_the_same(tmp_path, size):
    rows = [stream((9, "terminated"), (11, "truncated"))]
    cuts = [[min(size, 20 - begin)] for begin in range(0, 20, size)]
    found = Table(tmp_path, rows, cuts).transitions(4)
    assert found == by_a_loop(rows, 4) and len(found) == 20


def test_what_is_not_there_is_not_jumped_over(tmp_path):
    """Of one episode in chunks of 2 the second is gone: stretches of the first end there."""
    rows = [stream((6, "terminated"))]
    table = Table(tmp_path, rows, [[2], [2], [2]])
    without = StepIndex()
    for chunk in (table.chunks[0], table.chunks[2]):
        without.append(chunk)
    found = table.transitions(3, without)
    whole = by_a_loop(rows, 3)
    first, second, fifth, sixth = (rows[0][t] for t in (0, 1, 4, 5))
    assert set(found) == {(0, decision.step) for decision in (first, second, fifth, sixth)}
    assert found[0, first.step] == (first.rewards + second.rewards, second.then, False, False)
    assert found[0, second.step] == (second.rewards, second.then, False, False)
    assert [found[0, each.step] for each in (fifth, sixth)] == [
        whole[0, each.step] for each in (fifth, sixth)
    ]


def test_a_stretch_into_a_cell_that_was_given_away_is_invalid(tmp_path):
    table = Table(tmp_path, [stream((5, "terminated"))], [[2], [2], [1]])
    message = table.every_step(2)
    reader = SlabReader(table.folder, 3)
    assert reader.read(message)["valid"].tolist() == [True] * 5
    table.writers[1].generation(1, GENERATION + 1)
    # The first reaches decisions 0 to 2, the second 1 to 3, of the third and fourth it is the own chunk; the
    # last one is in the third chunk.
    assert reader.read(message)["valid"].tolist() == [False, False, False, False, True]
    assert reader.stale_chunks == 2


def judged(reached, goal):
    """-1 per decision until the goal is reached, which ends the episode."""
    there = np.abs(reached - goal)[:, 0] < 0.5
    return there - 1.0, there


def test_another_goal_first_and_returns_of_its_rewards_then(tmp_path):
    """Places 0 1 2 3 4 in chunks of 1, 1 and 2; n 3, gamma 0.9: what each goal makes of a decision."""
    row = [Decision(5, t, t, t + 1, [50.0]) for t in range(4)]
    row[-1].end = "truncated"
    table = Table(tmp_path, [row], [[1], [1], [2]], width=1)
    given = Hindsight(goal="goal", achieved="x", reward=f"{__name__}:judged", fraction=1.0, horizon=10)
    message, seen = table.every_step(9), {}
    for number in range(1, 40):
        batch = SlabReader(table.folder, 3, given).read(replace(message, sequence=number))
        label_returns(batch, 0.9)
        for s in range(4):
            assert batch["obs/goal"][s] == batch["next_obs/goal"][s]
            key = int(batch["obs/x"][s]), int(batch["obs/goal"][s])
            seen[key] = [
                batch[name][s].item() for name in ("decision_reward", "discount", "next_obs/x", "terminated")
            ]
    assert set(seen) == {(t, goal) for t in range(4) for goal in range(t + 1, 5)}
    by_hand = {
        (0, 1): [0.0, 0.0, 1.0, True],
        (0, 2): [-1.0, 0.0, 2.0, True],
        (0, 3): [-1.9, 0.0, 3.0, True],
        (0, 4): [-2.71, 0.729, 3.0, False],
        (1, 4): [-1.9, 0.0, 4.0, True],
        (2, 3): [0.0, 0.0, 3.0, True],
        (3, 4): [0.0, 0.0, 4.0, True],
    }
    for key, expected in by_hand.items():
        assert seen[key] == pytest.approx(expected, abs=1e-6), key


def test_goals_come_from_within_the_horizon(tmp_path):
    row = [Decision(5, t, t, t + 1, [0.0]) for t in range(12)]
    row[-1].end = "truncated"
    table = Table(tmp_path, [row], [[1]] * 12, width=1)
    given = Hindsight(goal="goal", achieved="x", reward=f"{__name__}:judged", fraction=1.0, horizon=3)
    found = set()
    for number in range(1, 30):
        batch = SlabReader(table.folder, hindsight=given).read(replace(table.every_step(2), sequence=number))
        found |= set((batch["obs/goal"] - batch["obs/x"])[:, 0].tolist())
        assert torch.equal(batch["reward"][:, 0] == 0, batch["terminated"])
    assert found == {1.0, 2.0, 3.0}


def test_all_gone_is_a_stale_read(tmp_path):
    table = Table(tmp_path, [stream((4, "terminated"))], [[2], [2]])
    for number in range(2):
        table.writers[number % 2].generation(number, GENERATION + 1)
    with pytest.raises(StaleRead):
        SlabReader(table.folder, 3).read(table.every_step(2))
