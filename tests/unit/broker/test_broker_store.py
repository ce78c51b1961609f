"""The store over a link: tickets, commits, batches, restarts."""

import itertools
import tracemalloc

import numpy as np
import pytest
from broker_kit import QUEUE, REPLAY, Turns, layout, open_table, read_rewards, ticket_request, write_chunk

from rollbus_broker.store.pool import SlabPool, TableFull
from rollbus_broker.store.store import Store
from rollbus_core.config.models import BrokerConfig
from rollbus_core.slabs import SlabFolder
from rollbus_wire.errors import SharedMemoryFull
from rollbus_wire.link import local_pair
from rollbus_wire.messages import (
    Cancel,
    Committed,
    Consumed,
    Durable,
    Fault,
    Sample,
    TableState,
    Ticket,
)  # fmt: skip

SHAPE = layout()


class Rig:
    """A store, an actor and a learner that share one local link, and a clock that is set by hand."""

    def __init__(self, path, **config):
        self.path, self.config, self.boots = (
            path,
            BrokerConfig(**{"slab_bytes": 1 << 16} | config),
            itertools.count(1),
        )
        self.now = 100.0
        self.slabs = SlabFolder(path)
        self.restart()

    def restart(self, audit=None):
        """The process dies (nothing is closed) and another one starts."""
        ours, theirs = local_pair(senders=("broker", "client"))
        self.store = Store(
            ours, self.path, self.path / "log", self.config, next(self.boots), self.now, audit=audit
        )
        theirs._ids = itertools.count(1000 * next(self.boots))
        self.client = Turns(theirs, lambda: self.store.poll(self.now))

    def ask(self, message, **kw):
        return self.client.ask(message, **kw)

    def insert(self, value, slice="s0", version=(1, 0), **kw):
        ticket = self.ask(ticket_request(slice))
        assert isinstance(ticket, Ticket), ticket
        return self.ask(write_chunk(self.slabs, ticket, SHAPE, value, version, **kw))


@pytest.fixture
def rig(tmp_path):
    return Rig(tmp_path)


def test_a_chunk_goes_through(rig):
    assert rig.ask(open_table(QUEUE)) == TableState("main", 0, 0, 0, 0, 0, 0, {})
    assert rig.insert(1.5).sequence == 1
    batch = rig.ask(Sample("main"))
    (chunk,) = batch.chunks
    assert batch.sequence == 1 and batch.total_steps == 64
    assert read_rewards(rig.slabs, chunk) == {1.5}
    assert chunk["lengths"].tolist() == [8] * 8 and chunk["slice"] == "s0"


def test_tickets_wait_for_the_table_and_for_the_learner(rig):
    assert rig.ask(ticket_request()) is None
    rig.ask(open_table(QUEUE))
    rig.client.link.send(ticket_request("s1"))
    assert rig.ask(Sample("main")) is None
    sample = rig.client.last
    rig.store.poll(rig.now)
    (info,) = rig.store.ledger.tables["main"].tickets.values()  # one batch of 64 is one ticket
    num_bytes = rig.store.ledger.pool.slabs[info.cell.slab].num_bytes
    cell = info.cell
    ticket = Ticket(info.number, cell.slab, num_bytes, cell.offset, cell.generation, 8, [1, 0])
    rig.client.link.send(write_chunk(rig.slabs, ticket, SHAPE, 1.0, (1, 0)))
    assert rig.client.answer(sample).sequence == 1
    assert len(rig.store.ledger.tables["main"].tickets) == 0
    assert isinstance(rig.ask(Consumed("main", 1, [1, 1], 1)), TableState)
    assert len(rig.store.ledger.tables["main"].tickets) == 1


def test_repeated_requests_are_handled_once(rig):
    rig.ask(open_table(QUEUE))
    ticket = rig.ask(ticket_request(), id=50)
    assert rig.ask(ticket_request(), id=50) == ticket
    commit = write_chunk(rig.slabs, ticket, SHAPE, 1.0, (1, 0))
    first = rig.ask(commit, id=51)
    assert rig.ask(commit, id=51) == first and first.sequence == 1
    batch = rig.ask(Sample("main"), id=52)
    assert rig.ask(Sample("main"), id=52) is batch
    assert rig.store.ledger.tables["main"].total_steps == 64
    assert rig.ask(Sample("main"), id=53) is None
    rig.ask(Sample("main"), id=53)
    assert rig.store.tables()[0]["waiting_samples"] == 1


@pytest.mark.parametrize("deterministic", [False, True])
def test_who_collects_for_a_dead_learner(rig, deterministic):
    """A deterministic run collects anew from the next learner's checkpoint: until then nothing."""
    settings = QUEUE | {"one_chunk_per_slice": deterministic}
    rig.ask(open_table(settings))
    rig.store.lost("an actor", True, rig.now, "actor")
    rig.store.lost("a learner that is silent", False, rig.now, "learner")
    assert isinstance(rig.ask(ticket_request(), id=60), Ticket)
    rig.store.lost("client", True, rig.now, "learner")
    found = rig.ask(ticket_request(), id=61)
    if not deterministic:
        assert isinstance(found, Ticket)
        return
    assert found is None
    rig.client.link.send(open_table(settings, version=(2, 0)))
    ticket = rig.client.answer(61)
    assert isinstance(ticket, Ticket) and ticket.min_version == [2, 0]


def test_what_does_not_match_its_digest_is_dropped_and_counted(rig):
    rig.ask(open_table(QUEUE))
    for spoil in ("digest", "lengths", "finals"):
        ticket = rig.ask(ticket_request())
        commit = write_chunk(rig.slabs, ticket, SHAPE, 1.0, (1, 0))
        if spoil == "digest":
            commit.digest ^= 1
        elif spoil == "lengths":
            commit.lengths = np.full(8, 9, np.int32)
        else:
            commit.num_finals = 5
        assert rig.ask(commit) == Committed(ticket.ticket, -1, "corrupt")
    state = rig.ask(Durable("main", 0))
    assert state.dropped == {"corrupt": 3} and state.total_steps == 0 and state.tickets == 0


def test_a_cell_may_come_in_the_message(rig):
    rig.ask(open_table(QUEUE))
    ticket = rig.ask(ticket_request())
    commit = write_chunk(rig.slabs, ticket, SHAPE, 4.0, (1, 0))
    buffer = rig.slabs.open(ticket.slab, ticket.slab_bytes)
    commit.cell = np.frombuffer(buffer, np.uint8, SHAPE.cell_bytes, ticket.offset).copy()
    SHAPE.views(buffer, ticket.offset)["reward"][:] = 0
    assert rig.ask(commit).sequence == 1
    assert read_rewards(rig.slabs, rig.ask(Sample("main")).chunks[0]) == {4.0}


def test_an_expired_ticket_lets_others_go_on_and_its_cell_rests(rig):
    rig.ask(open_table(QUEUE))
    late = rig.ask(ticket_request("slow"))
    assert rig.ask(ticket_request("quick")) is None
    waiting = rig.client.last
    rig.now += 121
    ticket = rig.client.answer(waiting)
    assert (ticket.slab, ticket.offset) != (late.slab, late.offset)
    assert rig.ask(write_chunk(rig.slabs, late, SHAPE, 9.0, (1, 0))).reason == "expired"
    assert not rig.store.ledger.resting
    assert rig.ask(write_chunk(rig.slabs, ticket, SHAPE, 1.0, (1, 0))).sequence == 1
    assert rig.ask(Durable("main", 0)).dropped == {"expired": 1}


def test_tickets_of_a_lost_member_return(rig):
    rig.ask(open_table(QUEUE))
    rig.ask(ticket_request())
    rig.store.lost("client", dead=False, now=rig.now)
    assert rig.store.tables()[0]["outstanding_steps"] == 0 and len(rig.store.ledger.resting) == 1
    rig.store.lost("client", dead=True, now=rig.now)
    assert not rig.store.ledger.resting


def test_cancel_returns_tickets(rig):
    rig.ask(open_table(QUEUE))
    ticket = rig.ask(ticket_request())
    rig.ask(Cancel([ticket.ticket]))
    assert rig.ask(ticket_request()).num_decisions == 8


def test_faults_say_what_to_do(rig):
    fault = rig.ask(Durable("other", 1))
    assert isinstance(fault, Fault) and "'other' is not open" in fault.text
    assert rig.ask(open_table({"sampler": "queue"})).code == "config"
    rig.ask(open_table(QUEUE))
    request = ticket_request()
    request.num_rows = 9
    assert rig.ask(request).code == "spec"
    assert rig.ask(ticket_request(rows=65, decisions=1)).code == "config"


def test_a_full_queue_waits_visibly_and_drops_nothing(rig):
    settings = QUEUE | {"max_bytes": 2 * SHAPE.cell_bytes, "max_lag": 5}
    rig.ask(open_table(settings))
    rig.insert(1.0)
    rig.insert(2.0)
    assert rig.ask(ticket_request()) is None
    waiting = rig.client.last
    assert rig.store.tables()[0]["state"] == "full"
    rig.ask(Sample("main"))
    rig.ask(Consumed("main", 1, [1, 1], 1))  # consumed chunks may go
    assert rig.store.tables()[0]["state"] == "open" and waiting
    state = rig.ask(Durable("main", 1))
    assert state.dropped == {} and state.tickets == 1


def test_full_memory_is_waited_out(rig, monkeypatch):
    create = SlabFolder.create

    def refuse(self, slab, num_bytes):
        raise SharedMemoryFull("no room")

    monkeypatch.setattr(SlabFolder, "create", refuse)
    rig.ask(open_table(QUEUE))
    assert rig.ask(ticket_request()) is None
    waiting = rig.client.last
    assert rig.store.tables()[0]["state"] == "memory"
    monkeypatch.setattr(SlabFolder, "create", create)
    rig.now += 1.0
    assert isinstance(rig.client.answer(waiting), Ticket)
    assert rig.store.tables()[0]["state"] == "open"


def test_replay_evicts_the_oldest_and_draws_what_is_there(rig):
    rig.ask(open_table(REPLAY | {"max_bytes": 4 * SHAPE.cell_bytes, "steps_per_update": 1000}))
    for value in range(8):
        rig.insert(float(value))
        rig.ask(Consumed("main", 0, [1, value + 1], value + 1))
    assert rig.ask(Sample("main", 2, 16, seed=3)) is None  # target(8) = 8032
    rig.ask(open_table(REPLAY | {"max_bytes": 4 * SHAPE.cell_bytes, "steps_per_update": 1}))
    batch = rig.ask(Sample("main", 2, 16, seed=3))
    assert batch.chunks == [] and batch.chunk.shape == (2, 16) and batch.chunk.dtype == np.int32
    values = set()
    for place, offset, generation in zip(batch.chunk_slab, batch.chunk_offset, batch.chunk_generation):
        slab = batch.slabs[place]
        chunk = {"slab": slab["slab"], "slab_bytes": slab["slab_bytes"], "layout": slab["layout"],
                 "offset": int(offset), "generation": int(generation)}  # fmt: skip
        values |= read_rewards(rig.slabs, chunk)
    assert values == {4.0, 5.0, 6.0, 7.0}
    assert batch.time.max() < 8 and batch.row.max() < 8
    assert rig.store.counts["evicted_chunks"] == 4


@pytest.mark.parametrize("fsync", [False, True])
def test_a_restart_keeps_chunks_and_answers_as_before(tmp_path, fsync):
    rig = Rig(tmp_path, fsync=fsync)
    rig.ask(open_table(QUEUE | {"max_lag": 2}))
    rig.insert(1.0, "a")
    ticket = rig.ask(ticket_request("b"))
    commit = write_chunk(rig.slabs, ticket, SHAPE, 2.0, (1, 0))
    rig.ask(commit)
    open_ticket = rig.ask(ticket_request("c"))
    batch = rig.ask(Sample("main"), id=7)
    (tmp_path / "slab-999").write_bytes(b"stale")
    rig.restart()
    assert not (tmp_path / "slab-999").exists()
    again = rig.ask(Sample("main"), id=7)  # the learner lives and repeats its request
    assert again.sequence == batch.sequence and read_rewards(rig.slabs, again.chunks[0]) == {1.0}
    assert rig.ask(commit) == Committed(ticket.ticket, 2)  # its answer was lost: not twice
    late = rig.ask(write_chunk(rig.slabs, open_ticket, SHAPE, 3.0, (1, 0)))
    assert late == Committed(open_ticket.ticket, -1, "expired")
    rig.ask(Consumed("main", 1, [1, 1], 1))
    following = rig.ask(Sample("main"))
    assert following.sequence == 2 and read_rewards(rig.slabs, following.chunks[0]) == {2.0}
    state = rig.ask(Durable("main", 2))
    assert (state.num_chunks, state.total_steps) == (0, 128)
    rig.restart()
    assert rig.insert(3.0).sequence == 3
    assert rig.ask(Durable("main", 2)).total_steps == 192


def test_a_new_learner_gets_what_its_checkpoint_lacks(rig):
    rig.ask(open_table(QUEUE | {"max_lag": 1}))
    for k in range(3):
        rig.insert(float(k), version=(1, k))
        rig.ask(Sample("main"))
        rig.ask(Consumed("main", k + 1, [1, k + 1], k + 1))
    rig.restart()
    state = rig.ask(open_table(QUEUE | {"max_lag": 1}, version=(2, 1), applied=1))
    assert state.dropped == {"lineage": 1} and state.total_steps == 192
    batch = rig.ask(Sample("main"))
    assert batch.sequence == 4 and read_rewards(rig.slabs, batch.chunks[0]) == {1.0}


def test_a_reboot_loses_slabs_in_memory_and_says_so(rig):
    rig.ask(open_table(QUEUE))
    rig.insert(1.0)
    for path in rig.path.glob("slab-*"):
        path.unlink()
    rig.restart()
    state = rig.ask(Durable("main", 0))
    assert state.dropped == {"memory": 1} and state.num_chunks == 0 and state.total_steps == 64
    assert rig.insert(2.0).sequence == 2


def test_a_replay_table_is_the_same_after_a_restart(rig):
    rig.ask(open_table(REPLAY))
    for k in range(6):
        rig.insert(float(k))
        rig.ask(Consumed("main", 0, [1, 8 * k + 8], 8 * k + 8))
    before = rig.store.ledger.tables["main"].draw(256, 9)
    rig.restart()
    after = rig.store.ledger.tables["main"].draw(256, 9)
    assert all(np.array_equal(a, b) for a, b in zip(before, after))


def test_a_cell_that_nobody_reads_any_more_is_the_next_one_used(tmp_path):
    for unread, expected in ((True, [4, 0]), (False, [5, 6])):
        folder = tmp_path / str(unread)
        folder.mkdir()
        shape = layout()
        pool = SlabPool(SlabFolder(folder), 8 * shape.cell_bytes, 1)
        if unread:
            pool.unread.add("main")
        cells = [pool.allocate("main", shape, shape.key, 1 << 20) for _ in range(5)]
        pool.free(cells[0])
        pool.free(cells[4])
        again = [pool.allocate("main", shape, shape.key, 1 << 20).offset for _ in range(2)]
        assert again == [index * shape.cell_bytes for index in expected]


def test_layouts_that_got_no_cell_or_have_none_any_more_cost_no_memory(tmp_path):
    """An actor can name any number of them."""
    pool, room = SlabPool(SlabFolder(tmp_path), 1, 1), layout(64, 64).cell_bytes
    pool.allocate("main", layout(64, 64), layout(64, 64).key, room)

    def name_others(count):
        for other in range(count):
            with pytest.raises(TableFull):
                pool.allocate("main", layout(), f"other-{other}", room)
            cell = pool.allocate("small", layout(), layout().key, room)
            pool.free(cell)
            assert pool.trim("small")

    name_others(10)
    tracemalloc.start()
    name_others(1000)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 1 << 16
