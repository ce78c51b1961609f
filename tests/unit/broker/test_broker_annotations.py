"""Late columns over a link: who may attach what to which chunk, once, in time, and over restarts."""

from __future__ import annotations

import re

import numpy as np
import pytest
from broker_kit import QUEUE, REPLAY, open_table
from test_broker_store import Rig

from rollbus_wire.messages import (
    Annotate,
    Annotated,
    Consumed,
    Durable,
    Fault,
    FetchUnannotated,
    Sample,
    Unannotated,
)

LATE = {"late_columns": ("judge",), "late_deadline_s": 4.0}
FETCH = FetchUnannotated("main", "judge")


@pytest.fixture
def rig(tmp_path):
    return Rig(tmp_path)


def values(value=1.0, shape=(8, 8)):
    return np.full(shape, value, np.float32)


def annotation(chunk, value=1.0, shape=(8, 8)):
    return Annotate("main", "judge", chunk["sequence"], values(value, shape))


def fetched(rig):
    reply = rig.ask(FETCH)
    assert isinstance(reply, Unannotated), reply
    return reply.chunk


def test_a_chunk_waits_for_its_column_and_brings_it(rig):
    rig.ask(open_table(QUEUE | LATE))
    assert rig.ask(FETCH) is None  # there is nothing yet
    fetching = rig.client.last
    assert rig.insert(1.5).sequence == 1
    assert rig.ask(Sample("main")) is None
    sampling = rig.client.last
    given = rig.client.answer(fetching) or rig.client.answer(rig.client.link.send(FETCH, id=fetching))
    assert given.chunk["sequence"] == 1 and 0 < given.left_s <= 4.0 and given.chunk["late"] == {}
    rig.client.link.send(Annotate("main", "judge", 1, values(0.25)))
    batch = rig.client.answer(sampling)
    np.testing.assert_array_equal(batch.chunks[0]["late"]["judge"], values(0.25))
    assert rig.store.counts["annotated_chunks"] == 1 and rig.store.counts["unannotated_chunks"] == 0


def test_a_column_is_attached_once(rig):
    rig.ask(open_table(QUEUE | LATE))
    rig.insert(1.0)
    chunk = fetched(rig)
    assert rig.ask(annotation(chunk, 1.0), id=77) == Annotated("main", "judge", 1, "attached")
    assert rig.ask(annotation(chunk, 1.0), id=77).outcome == "attached"  # the same request once more
    assert rig.ask(annotation(chunk, 9.0)).outcome == "again"  # the first one counts
    batch = rig.ask(Sample("main"))
    assert (batch.chunks[0]["late"]["judge"] == 1.0).all()
    assert rig.ask(annotation(chunk, 9.0)).outcome == "again"
    assert rig.store.counts["repeated_annotations"] == 2 and rig.store.counts["late_annotations"] == 0


def test_after_the_deadline_a_chunk_goes_on_with_zeros_and_its_column_is_refused(rig):
    rig.ask(open_table(QUEUE | LATE))
    rig.insert(1.0)
    chunk = fetched(rig)
    rig.now += 3.9
    assert rig.ask(Sample("main")) is None
    sampling = rig.client.last
    rig.now += 0.4
    batch = rig.client.answer(sampling)
    assert (batch.chunks[0]["late"]["judge"] == 0.0).all()
    assert rig.ask(annotation(chunk, 5.0)) == Annotated("main", "judge", 1, "late")
    counts = rig.store.counts
    assert (counts["unannotated_chunks"], counts["late_annotations"], counts["annotated_chunks"]) == (1, 1, 0)


@pytest.mark.parametrize("settings", [QUEUE, REPLAY], ids=["queue", "replay"])
def test_after_the_deadline_a_chunk_is_dropped_and_another_one_takes_its_place(rig, settings):
    rig.ask(open_table(settings | LATE | {"late_missing": "drop"}))
    rig.insert(1.0)
    rig.now += 4.1
    state = rig.ask(Durable("main", 0))
    rig.store.poll(rig.now)
    state = rig.ask(Durable("main", 0))
    assert state.dropped == {"unannotated": 1} and state.num_chunks == 0
    rig.insert(2.0)
    rig.ask(annotation(fetched(rig), 0.5))
    replay = settings is REPLAY
    batch = rig.ask(Sample("main", 1, 4, 3) if replay else Sample("main"))
    late = batch.late if replay else batch.chunks[0]["late"]
    assert (late["judge"] == 0.5).all()


def test_nobody_attaches_what_was_not_given_to_them(rig):
    rig.ask(open_table(QUEUE | LATE))
    rig.insert(1.0)
    chunk = fetched(rig)
    rig.client.link.sender = "stranger"
    reply = rig.ask(annotation(chunk))
    assert isinstance(reply, Fault) and reply.code == "forbidden" and "was not given to you" in reply.text
    rig.client.link.sender = "client"
    assert rig.ask(annotation(chunk)).outcome == "attached"


def test_what_an_annotator_holds_is_given_to_another_one(rig):
    rig.ask(open_table(QUEUE | LATE))
    rig.insert(1.0)
    chunk = fetched(rig)
    rig.client.link.sender = "other"
    assert rig.ask(FETCH) is None  # somebody is at it
    waiting = rig.client.last
    rig.now += 2.1  # half of its time is over
    assert rig.client.answer(waiting).chunk["sequence"] == 1
    rig.client.link.sender = "client"
    assert rig.ask(annotation(chunk)).outcome == "attached"  # both may; the first one counts

    rig.ask(Sample("main"))
    rig.ask(Consumed("main", 1, [1, 1], 1))
    rig.insert(2.0, version=(1, 1))
    assert fetched(rig)["sequence"] == 2
    rig.store.lost("client", True, rig.now)
    rig.client.link.sender = "third"
    assert fetched(rig)["sequence"] == 2  # at once: the holder is known to be gone


@pytest.mark.parametrize(
    ("spoilt", "text"),
    [(values(shape=(8, 7)), r"is float32 \[8, 8\], this one is float32 \[8, 7\]"),
     (values().astype(np.float64), "this one is float64"), (values(np.nan), "not finite")],
    ids=["shape", "dtype", "nan"],
)  # fmt: skip
def test_a_column_that_is_none_is_refused(rig, spoilt, text):
    rig.ask(open_table(QUEUE | LATE))
    rig.insert(1.0)
    reply = rig.ask(Annotate("main", "judge", fetched(rig)["sequence"], spoilt))
    assert isinstance(reply, Fault)
    assert re.search(text, reply.text), reply.text
    assert rig.ask(Sample("main")) is None


def test_a_column_that_nobody_waits_for_is_refused(rig):
    rig.ask(open_table(QUEUE | LATE))
    reply = rig.ask(FetchUnannotated("main", "jugde"))
    assert isinstance(reply, Fault) and "waits for no column 'jugde' (but for: judge)" in reply.text


def test_columns_outlive_the_broker(rig):
    rig.ask(open_table(QUEUE | LATE))
    rig.insert(1.0)
    rig.ask(annotation(fetched(rig), 0.75))
    rig.restart()
    batch = rig.ask(Sample("main"))
    assert (batch.chunks[0]["late"]["judge"] == 0.75).all()
    # What waited when the broker died waits on, for its whole time, and is given out anew.
    rig.ask(Consumed("main", 1, [1, 1], 1))
    rig.insert(2.0, version=(1, 1))
    chunk = fetched(rig)
    rig.restart()
    reply = rig.ask(annotation(chunk))
    assert isinstance(reply, Fault) and reply.code == "forbidden"
    assert rig.ask(annotation(fetched(rig), 0.5)).outcome == "attached"
    rig.store.ledger.compact()
    rig.restart()
    assert (rig.ask(Sample("main")).chunks[0]["late"]["judge"] == 0.5).all()


def test_a_resume_gets_columns_again(rig):
    rig.ask(open_table(QUEUE | LATE))
    rig.insert(1.0)
    rig.ask(annotation(fetched(rig), 0.75))
    rig.ask(Sample("main"))
    rig.ask(open_table(QUEUE | LATE, (2, 0)))
    assert (rig.ask(Sample("main")).chunks[0]["late"]["judge"] == 0.75).all()


def test_draws_have_the_columns_of_their_steps(rig):
    rig.ask(open_table(REPLAY | LATE))
    for number, lengths in enumerate(([8] * 8, [3, 8, 0, 1, 8, 8, 8, 2])):
        rig.insert(float(number), lengths=lengths)
        chunk = fetched(rig)
        place = np.arange(64, dtype=np.float32).reshape(8, 8) + 100 * number
        assert rig.ask(Annotate("main", "judge", chunk["sequence"], place)).outcome == "attached"
        if not number:
            rig.restart()
        rig.ask(Consumed("main", 0, [1, 8], 8))  # room for the next
    batch = rig.ask(Sample("main", 4, 200, seed=5))
    slab = np.array([each["slab"] for each in batch.slabs])[batch.chunk_slab]
    is_second = (slab == chunk["slab"]) & (batch.chunk_offset == chunk["offset"])
    second = is_second[batch.chunk]
    expected = 8 * batch.time + batch.row + 100 * second
    np.testing.assert_array_equal(batch.late["judge"], expected)
    assert second.any() and not second.all()


def test_steps_that_wait_are_not_drawn_and_count_as_begun(rig):
    rig.ask(open_table(REPLAY | LATE))
    rig.insert(1.0)
    table = rig.store.ledger.tables["main"]
    assert table.num_chunks() == 1 and table.live_steps() == 0 and table.outstanding == 64
    assert rig.ask(Sample("main", 1, 4, seed=1)) is None
    rig.restart()
    table = rig.store.ledger.tables["main"]
    assert table.live_steps() == 0 and table.outstanding == 64
    rig.ask(annotation(fetched(rig)))
    assert table.live_steps() == 64 and table.outstanding == 0 and table.total_steps == 64


def test_a_chunk_waits_for_all_of_its_columns(rig):
    rig.ask(open_table(QUEUE | LATE | {"late_columns": ("judge", "person")}))
    rig.insert(1.0)
    rig.ask(annotation(fetched(rig), 1.0))
    assert rig.ask(FETCH) is None and rig.ask(Sample("main")) is None
    sampling = rig.client.last
    person = rig.ask(FetchUnannotated("main", "person"))
    assert list(person.chunk["late"]) == ["judge"]
    rig.now += 4.1  # the person is too slow: what the judge said stays
    late = rig.client.answer(sampling).chunks[0]["late"]
    assert (late["judge"] == 1.0).all() and (late["person"] == 0.0).all()
    assert rig.ask(Annotate("main", "person", 1, values())).outcome == "late"
    assert rig.ask(annotation(person.chunk)).outcome == "again"


def test_what_waits_when_the_learner_dies_waits_on(rig):
    rig.ask(open_table(QUEUE | LATE))
    rig.insert(1.0)
    chunk = fetched(rig)
    rig.ask(open_table(QUEUE | LATE, (2, 0)))
    assert rig.ask(Sample("main")) is None
    sampling = rig.client.last
    rig.client.link.send(annotation(chunk, 0.5))
    assert (rig.client.answer(sampling).chunks[0]["late"]["judge"] == 0.5).all()


def test_a_full_replay_table_gives_up_the_oldest_when_the_newest_is_judged(rig):
    rig.ask(open_table(REPLAY | LATE | {"max_steps": 64, "priority_exponent": 0.6}))
    for value in (1.0, 2.0):
        rig.insert(value)
        assert rig.store.ledger.tables["main"].live_steps() == (0 if value == 1.0 else 64)
        rig.ask(annotation(fetched(rig), value))
        rig.ask(Consumed("main", 0, [1, 8], 8))
    assert rig.store.ledger.tables["main"].live_steps() == 64
    assert (rig.ask(Sample("main", 1, 50, seed=1)).late["judge"] == 2.0).all()


def test_a_resume_that_asks_for_another_column_has_zeros_for_what_was_there(rig):
    rig.ask(open_table(REPLAY))
    rig.insert(1.0)
    assert rig.ask(Sample("main", 1, 4, seed=1)).late is None
    rig.ask(open_table(REPLAY | LATE, (2, 0)))
    assert (rig.ask(Sample("main", 1, 4, seed=1)).late["judge"] == 0.0).all()
    rig.restart()
    assert (rig.ask(Sample("main", 1, 4, seed=2)).late["judge"] == 0.0).all()
