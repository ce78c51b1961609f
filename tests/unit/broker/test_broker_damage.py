"""Bytes of the store's log that changed on the disk: what is intact is kept, nothing comes twice."""

import json
import tempfile
from pathlib import Path

import pytest
from broker_kit import QUEUE, REPLAY, open_table, read_rewards, ticket_request
from hypothesis import given, settings
from hypothesis import strategies as st
from test_broker_store import Rig

from rollbus_broker.store.log import Log
from rollbus_wire.errors import ConfigError
from rollbus_wire.messages import Consumed, Durable, Fault, Sample

BIG = QUEUE | {"max_lag": 1}


def flip(path, *places, by=0xFF):
    data = bytearray(path.read_bytes())
    for place in places:
        data[place] ^= by
    path.write_bytes(bytes(data))


def write(path, records):
    log = Log(path)
    ends = []
    for record in records:
        log.append(record)
        log.flush()
        ends.append(log.num_bytes)
    log.close()
    return ends


RECORDS = st.lists(
    st.dictionaries(
        st.sampled_from(["k", "n", "b"]), st.one_of(st.integers(0, 1 << 60), st.binary(max_size=40)),
        min_size=1,
    ),
    min_size=1, max_size=8,
)  # fmt: skip


@given(RECORDS, st.integers(0, 1 << 30), st.integers(1, 255))
@settings(max_examples=300, deadline=None)
def test_a_changed_byte_costs_its_record_only(records, place, by):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        ends = write(path, records)
        place %= ends[-1]
        flip(path, place, by=by)
        hit = next(number for number, end in enumerate(ends) if place < end)
        before, was_last = ends[hit - 1] if hit else 0, hit == len(records) - 1
        found = Log(path).found
        assert found.records == records[:hit] + records[hit + 1 :]
        assert found.damage == ([] if was_last else [(before, ends[hit] - before)])
        assert found.cut_bytes == (ends[hit] - before if was_last else 0)


def test_the_damaged_file_is_kept_aside_and_the_intact_rest_is_read(tmp_path):
    path = tmp_path / "log"
    ends = write(path, [{"n": n} for n in range(6)])
    flip(path, ends[2] + 9, ends[2] + 10)
    damaged = path.read_bytes()
    log = Log(path)
    assert [r["n"] for r in log.found.records] == [0, 1, 2, 4, 5]
    assert log.kept == tmp_path / "log.damaged-1" and log.kept.read_bytes() == damaged
    assert Log(path).kept == tmp_path / "log.damaged-2"


class Run:
    """Chunks through a queue table, values 1, 2, ...; a learner that remembers what it has learned."""

    def __init__(self, path, table=BIG):
        self.rig = Rig(path)
        self.path, self.table, self.asked = path, table, 0
        #: Nobody can know that numbers were used: of what is cut off at the end no trace is left.
        self.repeats = False
        self.acknowledged, self.learned, self.value = {}, [], 0
        self.applied = self.version = 0
        self.rig.ask(open_table(table))

    def insert(self):
        self.value += 1
        version = (1, self.version)
        done = self.rig.insert(float(self.value), f"s{self.value % 2}", version=version)
        assert self.repeats or done.sequence not in self.acknowledged, "a number is used twice"
        self.acknowledged[done.sequence] = float(self.value)

    def learn(self):
        batch = self.sample()
        if isinstance(batch, Fault):
            assert "opens it anew" in batch.text or "is not open" in batch.text
            self.rig.ask(open_table(self.table, (1, self.version), self.applied))
            batch = self.sample()
        if batch is not None and batch.sequence <= self.applied:  # as `Streams` does
            self.rig.ask(open_table(self.table, (1, self.version), self.applied, outrun=True))
            batch = self.sample()
        if batch is None:
            return False
        assert batch.sequence > self.applied, "a delivery is numbered twice"
        for chunk in batch.chunks:
            self.learned += read_rewards(self.rig.slabs, chunk)
            assert self.acknowledged.get(chunk["sequence"]) == self.learned[-1]
        self.applied, self.version = batch.sequence, self.version + 1
        return True

    def sample(self):
        """The answer to the request that waits, asked again, or to a new one."""
        client = self.rig.client
        batch = client.ask(Sample("main"), id=self.asked)
        self.asked = client.last if batch is None else 0
        return batch

    def restart(self):
        self.asked = 0
        self.rig.restart(audit=self.path / "audit")

    def consume(self):
        self.rig.ask(Consumed("main", self.applied, [1, self.version], self.version))

    def go_on(self):
        """To the end of what there is, and two chunks more."""
        for more in (False, False, True, True):
            if more:
                self.insert()
            while self.learn():
                self.consume()

    def named(self):
        """Sequences of the chunks that the store says it has given up."""
        lines = (self.path / "audit" / "dropped.jsonl").read_text().splitlines()
        return {line["sequence"] for line in map(json.loads, lines) if "sequence" in line}


def story(path):
    """The log of a run in the middle of everything: one chunk learned and consumed, one learned, one not."""
    run = Run(path)
    run.insert()
    run.learn()
    run.consume()
    run.rig.ask(Durable("main", 1))
    run.insert()
    run.learn()
    run.consume()
    run.insert()
    run.learn()  # its `consumed` never comes
    run.insert()
    return run


def offsets(path):
    """Offset of each record."""
    data, found, at = path.read_bytes(), [], 0
    while at < len(data):
        found.append(at)
        at += 8 + int.from_bytes(data[at : at + 4], "little")
    return found


@pytest.fixture(scope="module")
def num_records(tmp_path_factory):
    path = tmp_path_factory.mktemp("story")
    story(path)
    return len(offsets(path / "log"))


def test_whichever_record_is_lost_nothing_is_learned_twice(tmp_path, num_records):
    """Each record in turn; then its header."""
    assert num_records > 12
    for number in range(num_records):
        for inside in (0, 3, 9):
            path = tmp_path / f"{number}-{inside}"
            path.mkdir()
            run = story(path)
            flip(path / "log", offsets(path / "log")[number] + inside)
            run.restart()
            run.go_on()
            assert len(set(run.learned)) == len(run.learned), f"record {number}: {run.learned}"
            missing = set(run.acknowledged.values()) - set(run.learned)
            named = run.named()
            unexplained = [s for s, v in run.acknowledged.items() if v in missing and s not in named]
            assert not unexplained, f"record {number}: {unexplained}"
            damaged = number < num_records - 1
            assert bool(run.rig.store.counts["damaged_log_bytes"]) == damaged
            assert (path / "log.damaged-1").exists() == damaged
            assert {5.0, 6.0} <= set(run.learned), "the run goes on"


@pytest.mark.parametrize("rest", [True, False])
def test_records_that_leave_no_byte_behind_are_missed_or_harmless(tmp_path, num_records, rest):
    """Each record in turn, with ``rest`` alone, else with all that follow; the learner lives on.

    Of commits at the very end nobody knows.
    """
    told = 0
    for number in range(1, num_records - 2):
        path = tmp_path / str(number)
        path.mkdir()
        run = story(path)
        data = (path / "log").read_bytes()
        places = [*offsets(path / "log"), len(data)]
        (path / "log").write_bytes(data[: places[number]] + (data[places[number + 1] :] if rest else b""))
        run.restart()
        run.repeats = not rest
        told += run.rig.store.counts["misfits"] > 0
        run.go_on()
        assert len(set(run.learned)) == len(run.learned), f"record {number}: {run.learned}"
        assert 6.0 in run.learned, f"record {number}: the run goes on"
        (fifth,) = [sequence for sequence, value in run.acknowledged.items() if value == 5.0]
        assert 5.0 in run.learned or fifth in run.named(), f"record {number}"
    assert bool(told) == rest


@given(st.integers(0, 1 << 30), st.integers(1, 255))
@settings(max_examples=40, deadline=None)
def test_whichever_byte_changes_nothing_is_learned_twice(place, by):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        run = story(path)
        flip(path / "log", place % (path / "log").stat().st_size, by=by)
        run.restart()
        run.restart()  # the doubt outlives a second kill
        run.go_on()
        assert len(set(run.learned)) == len(run.learned)
        assert {5.0, 6.0} <= set(run.learned)


def test_a_lost_commit_is_counted_and_named(tmp_path):
    run = story(tmp_path)
    commits = [
        at
        for at in offsets(tmp_path / "log")
        if b"\xa6commit" in (tmp_path / "log").read_bytes()[at : at + 24]
    ]
    flip(tmp_path / "log", commits[2] + 30)
    run.restart()
    assert run.rig.store.tables()[0]["dropped"] == {"damaged": 1}
    lines = [json.loads(line) for line in (tmp_path / "audit" / "dropped.jsonl").read_text().splitlines()]
    assert {"table": "main", "sequence": 3, "reason": "damaged", "consumed": False} in lines


def test_a_replay_table_goes_on_with_what_is_intact(tmp_path):
    rig = Rig(tmp_path)
    rig.ask(open_table(REPLAY))
    for k in range(6):
        rig.insert(float(k))
        rig.ask(Consumed("main", 0, [1, 8 * k + 8], 8 * k + 8))
    log = tmp_path / "log"
    data = log.read_bytes()
    commits = [at for at in offsets(log) if b"\xa6commit" in data[at : at + 24]]
    flip(log, commits[2] + 30)
    rig.restart(audit=tmp_path / "audit")
    assert isinstance(rig.ask(Sample("main", 1, 8)), Fault)
    rig.ask(open_table(REPLAY, (1, 48)))
    chunks = list(rig.store.ledger.tables["main"].chunks())
    assert [chunk.sequence for chunk in chunks] == [1, 2, 4, 5, 6]
    assert rig.insert(9.0).sequence == (3 << 32) + 1
    assert rig.store.ledger.tables["main"].dropped == {"damaged": 1}


def test_cells_whose_holder_is_not_known_rest(tmp_path):
    """The record of an open ticket is lost: its holder may write to the cell that nobody knows of."""
    rig = Rig(tmp_path)
    rig.ask(open_table(QUEUE | {"max_lag": 3}))
    ticket = rig.ask(ticket_request("slow"))
    rig.insert(1.0, "other")
    log = tmp_path / "log"
    data = log.read_bytes()
    (at, *_) = [at for at in offsets(log) if b"\xa6ticket" in data[at : at + 24]]
    flip(log, at + 30)
    rig.restart()
    rig.ask(open_table(QUEUE | {"max_lag": 3}))
    places = {(t.slab, t.offset) for t in (rig.ask(ticket_request(f"s{k}")) for k in range(3))}
    assert (ticket.slab, ticket.offset) not in places
    assert any(cell == (ticket.slab, ticket.offset) for cell in rig.store.ledger.pool._withheld)
    rig.now += rig.config.ticket_timeout_s + 1
    rig.store.poll(rig.now)
    assert not rig.store.ledger.pool._withheld


def test_a_table_whose_state_is_lost_is_opened_anew_with_new_numbers(tmp_path):
    run = story(tmp_path)
    run.restart()  # rewrites the log
    data = (tmp_path / "log").read_bytes()
    (at,) = [at for at in offsets(tmp_path / "log") if b"\xa5state" in data[at : at + 24]]
    flip(tmp_path / "log", at + 30)
    run.restart()
    with pytest.raises(ConfigError, match="is not open"):
        run.rig.store.ledger.usable("main")
    run.go_on()
    assert max(run.acknowledged) > 3 << 32 and len(set(run.learned)) == len(run.learned)
    assert {2, 3, 4} <= run.named()


@pytest.mark.parametrize("left", ["nothing", "garbage", "whole records", "torn"])
def test_a_log_without_its_end_uses_no_number_twice(tmp_path, left):
    """Nobody but the learner can know that records are missing: it has applied more than was delivered."""
    run = story(tmp_path)
    log = tmp_path / "log"
    first = next(at for at in offsets(log) if b"\xa6commit" in log.read_bytes()[at : at + 24])
    kept = {"nothing": b"", "garbage": bytes(range(1, 60)) * 99, "whole records": log.read_bytes()[:first]}
    log.write_bytes(kept.get(left, log.read_bytes()[: first + 20]))
    before = set(run.acknowledged)
    run.restart()
    run.rig.ask(open_table(run.table, (1, run.version), run.applied))
    run.insert()
    assert run.value not in run.learned and not before & {max(run.acknowledged)}
    run.go_on()
    assert len(set(run.learned)) == len(run.learned) and max(run.acknowledged) > 3 << 32
    ranges = [
        line for line in map(json.loads, (tmp_path / "audit" / "dropped.jsonl").open()) if "first" in line
    ]
    assert ranges[0]["first"] == 1 and max(before) <= ranges[0]["last"] < 3 << 32
    assert "log lost its end" in run.rig.store.drops.notice
    assert (tmp_path / "log.damaged-1").exists() == (left == "garbage")
    numbers = set(run.acknowledged)
    run.restart()  # the new range outlives another start
    run.insert()
    assert max(run.acknowledged) > max(numbers)
