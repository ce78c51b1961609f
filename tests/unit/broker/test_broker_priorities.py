"""Draws by priority: frequencies by hand, a tree that grows and loses its oldest, a table that uses it."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from test_broker_replay_table import insert

from rollbus_broker.store.checks import priorities_of
from rollbus_broker.store.priorities import SMALLEST, Priorities
from rollbus_broker.store.replay_table import ReplayTable
from rollbus_core.feed import TableConfig
from rollbus_core.version import Version
from rollbus_wire.errors import WireError
from rollbus_wire.messages import Consumed


def test_frequencies_by_hand():
    """Priorities 1, 4, 9, 0 to the power 0.5: 1, 2, 3 and nearly 0 of 6."""
    found = Priorities(0.5)
    found.append(4)
    found.update(np.arange(4), np.array([1.0, 4.0, 9.0, 0.0]))
    steps, probability = found.draw(60_000, 0)
    share = np.bincount(steps, minlength=4) / 60_000
    np.testing.assert_allclose(share, [1 / 6, 2 / 6, 3 / 6, 0.0], atol=0.001)
    want = np.sqrt(np.array([1.0, 4.0, 9.0, 0.0]) + SMALLEST)
    np.testing.assert_allclose(probability, (want / want.sum())[steps], rtol=1e-9)


def test_minibatches_of_a_draw_are_alike():
    """Parts of the sum are drawn from in a random order, so the first half is not the older half."""
    found = Priorities(1.0)
    found.append(1000)
    steps, _ = found.draw(1000, 1)
    assert abs(steps[:500].mean() - steps[500:].mean()) < 60 and len(set(steps.tolist())) > 600


def test_against_a_list():
    """A thousand random appends, drops and updates; the tree's weights are those of a plain dictionary."""
    random, found, plain, first, end, largest = np.random.default_rng(0), Priorities(0.7), {}, 0, 0, 1.0
    for _ in range(300):
        num = int(random.integers(1, 40))
        found.append(num)
        plain |= dict.fromkeys(range(end, end + num), largest)
        end += num
        if random.random() < 0.6 and end - first > 50:
            gone = int(random.integers(1, 50))
            found.drop(gone)
            for step in range(first, first + gone):
                del plain[step]
            first += gone
        steps = random.integers(max(0, first - 5), end + 5, 20)
        new = random.exponential(size=20)
        found.update(steps, new)
        for step, value in zip(steps.tolist(), new.tolist()):
            if step in plain:
                plain[step] = value + SMALLEST
        largest = max([largest, *(v + SMALLEST for s, v in zip(steps.tolist(), new.tolist()) if s in plain)])
    weights = {step: value**0.7 for step, value in plain.items()}
    assert found.total == pytest.approx(sum(weights.values()))
    drawn, probability = found.draw(4096, 3)
    assert set(drawn.tolist()) <= set(plain)
    want = [weights[step] / found.total for step in drawn.tolist()]
    np.testing.assert_allclose(probability, want, rtol=1e-6)


def test_a_table_draws_by_what_it_was_told():
    table = ReplayTable("train", TableConfig(sampler="replay", min_steps=1, priority_exponent=1.0))
    table.open(Version(1, 0), 0)
    chunks = [insert(table, lengths, force=True)[0] for lengths in ([3, 1], [0, 4])]
    draw = table.draw(64, 0)
    assert draw.step is not None and set(draw.step.tolist()) == set(range(8))
    np.testing.assert_allclose(draw.probability, 1 / 8)
    table.prioritise(np.arange(8), np.where(np.arange(8) == 6, 5.0, 0.0))
    draw = table.draw(64, 1)
    # Step 6 is the third of the second chunk, in its row 1.
    assert set(draw.step.tolist()) == {6} and set(draw.time.tolist()) == {2} and set(draw.row.tolist()) == {1}
    assert draw.generation.tolist() == [chunks[1].cell.generation]
    again = ReplayTable("train", table.config)
    again.load(table.dump(), list(table.dump_chunks()))
    assert set(again.draw(64, 0).step.tolist()) == set(range(8))


@pytest.mark.parametrize(
    ("step", "priority"),
    [
        (np.zeros(2, np.int64), None),
        (np.zeros(2, np.int64), np.zeros(3, np.float32)),
        (np.zeros((2, 1), np.int64), np.zeros((2, 1), np.float32)),
        (np.zeros(2, np.float32), np.zeros(2, np.float32)),
        ([1, 2], [3, 4]),
    ],
)
def test_priorities_that_are_none_are_refused(step, priority):
    with pytest.raises(WireError, match="priorities"):
        priorities_of(Consumed("train", 1, [1, 0], 1, step, priority))


def test_updates_that_cannot_be_are_passed_over():
    found = Priorities(1.0)
    found.append(2)
    found.update(np.array([0, 1, 7, -1]), np.array([np.nan, -1.0, 3.0, 3.0]))
    assert found.total == 2.0
