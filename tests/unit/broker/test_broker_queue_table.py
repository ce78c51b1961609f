"""Queue tables: bounds, batches, lineages; and any history keeps the promises."""

import itertools

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rollbus_broker.store.queue_table import QueueTable
from rollbus_broker.store.records import Cell, Chunk, TicketInfo
from rollbus_core.feed import TableConfig
from rollbus_core.version import Version
from rollbus_wire.errors import ConfigError

NUMBERS = itertools.count(1)


def queue(batch_steps=64, max_lag=0, **more):
    return QueueTable("main", TableConfig(batch_steps=batch_steps, max_lag=max_lag, **more))


def begin(table, slice="s", rows=8, asked=8):
    grant = table.place(slice, rows, asked)
    if grant is None:
        return None
    number = next(NUMBERS)
    ticket = TicketInfo(
        number, "actor", slice, rows, grant.num_decisions, grant.batch, grant.min_version, Cell(1, 0, number)
    )
    table.begin(ticket)
    return ticket


def commit(table, ticket, version=None, lengths=None):
    version = version or ticket.min_version
    lengths = np.array(lengths or [ticket.num_decisions] * ticket.num_rows, np.int32)
    reason = table.refusal(ticket, version, version)
    if reason:
        table.end(ticket.number, reason)
        return reason
    table.commit(
        Chunk(table.sequence + 1, ticket.number, ticket.cell, ticket.slice, lengths, 0, 0, version, version)
    )
    return ""


def test_resume_bounds_what_is_outstanding_and_starts_from_its_version():
    """T11: restored at version 500, lag 2, batch 64: at most 192 outstanding, none older than 500."""
    table = queue(64, max_lag=2)
    table.open(Version(2, 500), applied=500)
    tickets = []
    while (ticket := begin(table, rows=8, asked=4)) is not None:
        tickets.append(ticket)
        assert table.outstanding <= 192
    assert table.outstanding == 192 and len(tickets) == 6
    assert {t.min_version for t in tickets} == {Version(2, 500)}
    assert [t.batch for t in tickets] == [501, 501, 502, 502, 503, 503]


def test_min_version_moves_with_the_updates():
    table = queue(64, max_lag=1)
    table.open(Version(1, 0), 0)
    assert begin(table).min_version == Version(1, 0)  # batch 1: max(0, 0 - 1)
    second = begin(table)
    assert (second.batch, second.min_version) == (2, Version(1, 0))  # 0 + 1 - 1
    assert begin(table) is None
    commit(table, next(iter(table.tickets.values())))
    table.deliver(1, ("l", 1))
    assert begin(table) is None  # delivered is not consumed
    table.consumed(1, Version(1, 1), 1)
    third = begin(table)
    assert (third.batch, third.min_version) == (3, Version(1, 1))


def test_a_ticket_never_reaches_beyond_its_batch():
    table = queue(64)
    table.open(Version(1, 0), 0)
    assert begin(table, rows=8, asked=5).num_decisions == 5
    assert begin(table, rows=8, asked=5).num_decisions == 3
    assert begin(table, rows=8, asked=5) is None


def test_a_cut_chunk_leaves_room_in_its_batch():
    table = queue(64)
    table.open(Version(1, 0), 0)
    commit(table, begin(table), lengths=[5] * 8)
    assert not table.complete([])
    again = begin(table)
    assert (again.num_decisions, again.batch) == (3, 1)


def test_a_rest_smaller_than_every_request_completes_the_batch():
    table = queue(60)
    table.open(Version(1, 0), 0)
    ticket = begin(table)  # 7 x 8 = 56 of 60
    assert ticket.num_decisions == 7 and not table.complete([8])
    commit(table, ticket)
    assert table.complete([]) and begin(table) is None


def test_a_rest_that_only_an_absent_small_slice_fits_completes_when_others_wait():
    table = queue(64)
    table.open(Version(1, 0), 0)
    commit(table, begin(table, "small", rows=2, asked=1))
    commit(table, begin(table, "big", rows=20, asked=3))
    assert not table.complete([])  # 2 steps are left and the small slice may come
    assert table.complete([20])


def test_rows_beyond_a_batch_are_a_clear_error():
    table = queue(4)
    table.open(Version(1, 0), 0)
    with pytest.raises(ConfigError, match="8 rows.*4 steps"):
        table.place("s", 8, 1)


def test_a_table_is_full_while_no_batch_has_room():
    table = queue(64, max_lag=1)
    table.open(Version(1, 0), 0)
    assert not table.full
    commit(table, begin(table))
    assert not table.full, "the next batch may begin, too"
    begin(table)
    assert table.full and begin(table, rows=1, asked=1) is None
    table.deliver(1, ("l", 1))
    assert table.full, "delivered is not consumed"
    table.consumed(1, Version(1, 1), 1)
    assert not table.full


def test_deterministic_batches_take_one_chunk_per_slice():
    table = queue(128, max_lag=1, one_chunk_per_slice=True)
    table.open(Version(1, 0), 0)
    first = begin(table, "a")
    commit(table, first)
    ahead = begin(table, "a")
    assert (first.batch, ahead.batch) == (1, 2)
    assert begin(table, "a") is None and not table.complete([8])
    late = begin(table, "b")
    assert late.batch == 1
    commit(table, late, lengths=[3] * 8)  # cut short: still this slice's chunk of the batch
    assert table.complete([8])
    assert [c.slice for c in table.deliver(1, ("l", 1))] == ["a", "b"]


def test_dead_lineages_are_dropped_and_survivors_delivered_again():
    table = queue(64, max_lag=1)
    table.open(Version(1, 10), 0)
    for number in (10, 11, 12):
        commit(table, begin(table), Version(1, number))
        table.deliver(table.delivered + 1, ("l", number))
        table.consumed(table.delivered, Version(1, number + 1), number + 1)
    table.durable(1)  # the checkpoint at version 11 has applied delivery 1
    open_ticket = begin(table)
    freed, void = table.open(Version(2, 11), applied=1)
    assert void == [open_ticket] and not table.tickets
    assert [c.newest for c in freed] == [Version(1, 12)]
    assert table.dropped == {"lineage": 2}  # the chunk of version 12 and the void ticket
    assert table.complete([]) and table.delivered == 4  # 4 was begun: no number is used twice
    assert [c.newest for c in table.deliver(5, ("l", 1))] == [Version(1, 11)]
    table.consumed(5, Version(2, 12), 12)
    late = begin(table)
    assert commit(table, late, Version(1, 12)) == "lineage"


def test_a_living_learner_that_opens_again_changes_nothing():
    table = queue(64)
    table.open(Version(1, 0), 0)
    commit(table, begin(table))
    table.deliver(1, ("l", 1))
    table.consumed(1, Version(1, 1), 1)
    ticket = begin(table)
    assert table.open(Version(1, 1), applied=1) == ([], [])
    assert list(table.tickets) == [ticket.number]


def test_eviction_before_a_checkpoint_counts_as_full_when_a_resume_misses_it():
    table = queue(64)
    table.open(Version(1, 0), 0)
    commit(table, begin(table))
    assert table.evict() == []  # not consumed: never given up
    table.deliver(1, ("l", 1))
    table.consumed(1, Version(1, 1), 1)
    assert len(table.evict()) == 1
    table.open(Version(2, 0), applied=0)
    assert table.dropped["full"] == 1


def test_consumed_deliveries_without_checkpoints_do_not_pile_up():
    table = queue(64)
    table.open(Version(1, 0), 0)
    for number in range(1, 101):
        commit(table, begin(table))
        table.deliver(number, ("l", number))
        table.consumed(number, Version(1, number), number)
    assert 32 <= table.num_chunks() <= 35 and table.total_steps == 6400


class QueueMachine(RuleBasedStateMachine):
    """Actors with ragged slices, a learner that dies and resumes, tickets that return."""

    @initialize(
        batch_steps=st.integers(6, 40),
        max_lag=st.integers(0, 3),
        rows=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    )
    def start(self, batch_steps, max_lag, rows):
        self.table = queue(batch_steps, max_lag)
        self.rows = rows
        self.version, self.applied, self.lineage = Version(1, 0), 0, 1
        self.saved = (0, 0)
        self.seen = {}
        self.table.open(self.version, 0)

    @rule(slice=st.integers(0, 3), asked=st.integers(1, 9))
    def ask(self, slice, asked):
        slice %= len(self.rows)
        begin(self.table, f"s{slice}", self.rows[slice], asked)

    @precondition(lambda self: self.table.tickets)
    @rule(pick=st.integers(0, 99), cut=st.booleans(), age=st.integers(0, 3))
    def commit(self, pick, cut, age):
        ticket = list(self.table.tickets.values())[pick % len(self.table.tickets)]
        number = max(ticket.min_version.number, self.version.number - age)
        lengths = [max(1, ticket.num_decisions - cut)] * ticket.num_rows
        assert commit(self.table, ticket, Version(self.lineage, number), lengths) == ""

    @precondition(lambda self: self.table.tickets)
    @rule(pick=st.integers(0, 99))
    def lose(self, pick):
        self.table.end(list(self.table.tickets)[pick % len(self.table.tickets)])

    @precondition(lambda self: self.table.complete(self.rows if not self.fits() else []))
    @rule()
    def learn(self):
        number = self.table.delivered + 1
        for chunk in self.table.deliver(number, ("l", number)):
            delivered = self.seen.setdefault(chunk.sequence, [])
            assert self.lineage not in delivered  # at most once per lineage
            delivered.append(self.lineage)
            assert chunk.oldest.number >= self.version.number - self.table.config.max_lag
            assert self.table.alive(chunk.newest)
        self.version, self.applied = self.version.next(), number
        self.table.consumed(number, self.version, self.version.number)

    @rule()
    def save(self):
        self.saved = (self.version.number, self.applied)
        self.table.durable(self.applied)

    @rule()
    def resume(self):
        self.lineage += 1
        self.version, self.applied = Version(self.lineage, self.saved[0]), self.saved[1]
        self.table.open(self.version, self.applied)
        self.applied = max(self.applied, 0)

    def fits(self):
        return any(self.table.place(f"s{i}", rows, 1) for i, rows in enumerate(self.rows))

    @invariant()
    def bounded(self):
        if hasattr(self, "table"):
            config = self.table.config
            assert self.table.outstanding <= (config.max_lag + 1) * config.batch_steps
            # One step of one row fits wherever there is any room.
            assert self.table.full == (self.table.place("s", 1, 1) is None)

    def teardown(self):
        """No deadlock: if all do their part, three more updates happen."""
        if not hasattr(self, "table"):
            return
        goal = self.version.number + 3
        for _ in range(2000):
            if self.version.number >= goal:
                return
            waiting = []
            for i, rows in enumerate(self.rows):
                if begin(self.table, f"s{i}", rows, 3) is None:
                    waiting.append(rows)
            for ticket in list(self.table.tickets.values()):
                commit(
                    self.table,
                    ticket,
                    Version(self.lineage, max(ticket.min_version.number, self.version.number)),
                )
            waiting = [r for i, r in enumerate(self.rows) if self.table.place(f"s{i}", r, 3) is None]
            if self.table.complete(waiting):
                self.learn()
        raise AssertionError("deadlock")


QueueMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestQueueMachine = QueueMachine.TestCase


def test_batches_of_whole_episodes_count_rows_and_not_steps():
    """16 rows in slices of 8: short episodes fill a batch as well as long ones, and nobody's are cut."""
    table = QueueTable("main", TableConfig(batch_rows=16, max_lag=0))
    table.open(Version(1, 0), 0)
    first, second = begin(table, "a", 8, asked=50), begin(table, "b", 8, asked=50)
    assert first.num_decisions == second.num_decisions == 50
    assert begin(table, "a", 8, asked=50) is None and table.outstanding == 16
    assert commit(table, first, lengths=[1] * 8) == ""
    assert not table.complete([])
    assert commit(table, second, lengths=[3, 50, 1, 2, 2, 2, 2, 2]) == ""
    assert table.complete([]) and len(table.deliver(1, ("learner", 1))) == 2
    with pytest.raises(ConfigError, match="16 rows"):
        table.place("c", 17, 1)
    with pytest.raises(ValueError, match="batch_rows"):
        TableConfig(batch_rows=4, batch_steps=4)
