"""Replay tables: the ratio, uniform draws, eviction."""

import itertools
import time

import numpy as np

from rollbus_broker.store.records import Cell, Chunk, TicketInfo
from rollbus_broker.store.replay_table import ReplayTable
from rollbus_core.feed import TableConfig
from rollbus_core.version import Version

NUMBERS = itertools.count(1)


def replay(**settings):
    table = ReplayTable(
        "main", TableConfig(sampler="replay", **{"min_steps": 16, "steps_per_update": 4} | settings)
    )
    table.open(Version(1, 0), 0)
    return table


def insert(table, lengths, slab=1, force=False):
    rows, decisions = len(lengths), int(max(lengths))
    grant = table.place("s", rows, decisions)
    if grant is None and not force:
        return None
    number = next(NUMBERS)
    cell = Cell(slab, number * 64, number)
    table.begin(TicketInfo(number, "a", "s", rows, decisions, 0, Version(), cell))
    chunk = Chunk(number, number, cell, "s", np.array(lengths, np.int32), 0, 0, Version(1, 0), Version(1, 0))
    return chunk, table.commit(chunk)


def test_the_ratio_holds_both_sides():
    table = replay()  # target(u) = 16 + 4 u
    inserted = 0
    while insert(table, [4, 4]) is not None:
        inserted += 8
    assert inserted == 24  # begun while <= target(1) = 20
    updates = 0
    while table.can_draw():
        updates += 1
        table.consumed(updates, Version(1, updates), updates)
    assert updates == 3  # updates 0, 1, 2 need 16, 20, 24
    assert insert(table, [4, 4]) is not None


def test_open_tickets_count_as_begun():
    table = replay()
    number = next(NUMBERS)
    table.begin(TicketInfo(number, "a", "s", 8, 4, 0, Version(), Cell(1, 0, 1)))  # 32 > 20
    assert table.place("s", 8, 4) is None and table.full  # thousands that wait are not asked one by one
    table.end(number)
    assert table.place("s", 8, 4) is not None and not table.full


def test_warm_up_is_random():
    table = replay(random_steps=8)
    assert table.place("s", 2, 4).mode == "random"
    insert(table, [4, 4])
    assert table.place("s", 2, 4).mode == "sample"


def test_a_new_run_of_an_empty_table_warms_up_at_any_version():
    table = ReplayTable("main", TableConfig(sampler="replay", min_steps=16, steps_per_update=4))
    table.open(Version(2, 1000), 7)
    assert table.place("s", 8, 2) is not None and not table.can_draw()
    insert(table, [8, 8])
    assert table.can_draw()


def test_draws_are_uniform_over_valid_steps_only():
    table = replay()
    chunks = [insert(table, lengths, force=True)[0] for lengths in ([3, 1], [0, 4], [2, 0])]
    draw = table.draw(60_000, seed=5)
    counts = {}
    for c, t, r in zip(draw.chunk.tolist(), draw.time.tolist(), draw.row.tolist()):
        counts[c, t, r] = counts.get((c, t, r), 0) + 1
    valid = (
        {(0, t, 0) for t in range(3)}
        | {(0, 0, 1)}
        | {(1, t, 1) for t in range(4)}
        | {(2, t, 0) for t in range(2)}
    )
    assert set(counts) == valid
    assert all(abs(n - 6000) < 400 for n in counts.values())  # 5 sigma = 367
    assert draw.offset.tolist() == [c.cell.offset for c in chunks]
    assert draw.generation.tolist() == [c.cell.generation for c in chunks]


def test_a_draw_is_a_function_of_its_seed():
    table = replay()
    for _ in range(10):
        insert(table, [4, 4], force=True)
    a, b, c = table.draw(64, 1), table.draw(64, 1), table.draw(64, 2)
    assert all(np.array_equal(x, y) for x, y in zip(a, b))
    assert not np.array_equal(a.chunk * 8 + a.time, c.chunk * 8 + c.time)


def test_only_used_chunks_are_named():
    table = replay()
    for _ in range(100):
        insert(table, [4, 4], force=True)
    draw = table.draw(3, seed=0)
    assert len(draw.slab) == len(set(draw.chunk.tolist())) <= 3


def test_max_steps_pushes_the_oldest_out():
    table = replay(max_steps=20)
    first, _ = insert(table, [4, 4], force=True)
    insert(table, [4, 4], force=True)
    assert insert(table, [4, 4], force=True)[1] == []  # 24 - 8 < 20
    assert insert(table, [4, 4], force=True)[1] == [first]
    assert table.live_steps() == 24 and table.total_steps == 32


def test_eviction_keeps_the_index_right():
    table = replay()
    for k in range(200):
        insert(table, [k % 3 + 1, 2], force=True)
        if k % 7 == 6:
            table.evict()
    live = list(table.chunks())
    assert table.live_steps() == sum(c.steps for c in live)
    draw = table.draw(5000, seed=3)
    by_generation = {c.cell.generation: c for c in live}
    for c, t, r in zip(draw.chunk, draw.time, draw.row):
        assert t < by_generation[int(draw.generation[c])].lengths[r]
    assert len(draw.slab) == len(live)


def test_lost_chunks_leave_the_draw():
    table = replay()
    insert(table, [4, 4], slab=1, force=True)
    kept, _ = insert(table, [4, 4], slab=2, force=True)
    assert len(table.lose(lambda c: c.cell.slab == 1)) == 1
    assert table.dropped["memory"] == 1
    assert table.draw(10, 0).slab.tolist() == [2] and table.live_steps() == 8


def test_a_large_draw_is_quick():
    """64 x 256 steps of 20,000 chunks: what one update of an off-policy learner asks for."""
    table = replay()
    for _ in range(20_000):
        insert(table, [8] * 8, force=True)
    times = []
    for seed in range(5):
        start = time.perf_counter()
        table.draw(64 * 256, seed)
        times.append(time.perf_counter() - start)
    assert min(times) < 0.02


def chain(table, **draw):
    """Sequence of each named chunk -> that of the one that follows."""
    found = table.draw(500, 1, **draw)
    by_offset = {chunk.cell.offset: chunk for chunk in table.chunks()}
    chunks = [by_offset[int(offset)] for offset in found.offset]
    return {
        chunk.sequence: None if after < 0 else chunks[after].sequence
        for chunk, after in zip(chunks, found.following)
    }


def filled(slices, lengths=(2, 4)):
    table = replay(steps_per_update=0, min_steps=1)
    for number, name in enumerate(slices, start=1):
        cell = Cell(1, number * 64, number)
        table.begin(TicketInfo(number, "a", name, 2, 4, 0, Version(), cell))
        versions = Version(1, 0), Version(1, 0)
        table.commit(Chunk(number, number, cell, name, np.array(lengths, np.int32), 0, 0, *versions))
    return table


def test_a_draw_names_what_follows_in_the_slice():
    table = filled(["a", "b", "a", "b", "b"])
    assert chain(table, ahead=1) == {1: 3, 3: None, 2: 4, 4: 5, 5: None}
    assert table.draw(500, 1).following is None
    table._drop_first()
    assert chain(table, ahead=1) == {3: None, 2: 4, 4: 5, 5: None}


def test_it_names_so_many_decisions_and_no_more():
    """Chunks of 2 decisions (an empty row does not count): ceil(ahead / 2) further ones."""
    table = filled(["a"] * 6, lengths=(2, 0))
    for ahead, expected in {1: 1, 2: 1, 3: 2, 4: 2, 7: 4, 99: 5}.items():
        named = np.zeros(6, bool)
        named[0] = True
        table._index._reach(named, ahead)
        assert named.sum() - 1 == expected, ahead
    # Two that are drawn: what the second wants goes further.
    named = np.array([True, True, False, False, False, False])
    table._index._reach(named, 4)
    assert named.tolist() == [True] * 4 + [False] * 2


def test_links_are_the_same_after_a_restart():
    table = filled(["a", "b", "a", "a", "b"])
    again = replay(steps_per_update=0, min_steps=1)
    again.load(table.dump(), list(table.dump_chunks()))
    before, after = table.draw(64, 3, 5), again.draw(64, 3, 5)
    assert all(np.array_equal(x, y) for x, y in zip(before, after) if x is not None)
    assert (before.following >= 0).any()
