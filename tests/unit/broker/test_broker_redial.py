"""The store, real sockets: who dialled anew while a request waited is answered over the new connection."""

from __future__ import annotations

import time

import pytest
from broker_kit import QUEUE, layout, open_table, ticket_request, write_chunk

from rollbus_broker.store.store import Store
from rollbus_core.config.models import BrokerConfig
from rollbus_core.slabs import SlabFolder
from rollbus_wire.messages import Batch, Consumed, Sample, TableState, Ticket
from rollbus_wire.zmq_link import ZmqLink

WAIT_S = 5.0


class Rig:
    def __init__(self, path):
        self.address = f"ipc://{path}/store"
        self.slabs = SlabFolder(path)
        self.links = [ZmqLink.bind(self.address, sender="broker")]
        self.store = Store(self.links[0], path, path / "log", BrokerConfig(slab_bytes=1 << 16), 1, 100.0)

    def dial(self, sender):
        self.links.append(ZmqLink.connect(self.address, sender=sender))
        return self.links[-1]

    def answer(self, link, request):
        """The answer to ``request`` over ``link``; None if the store has it for nobody."""
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            self.store.poll(100.0)
            if (envelope := link.recv()) is not None and envelope.re == request:
                return envelope.message
            time.sleep(0.001)
        return None

    def waits(self, link, message, **key):
        """Ask what cannot be answered yet; returns once the store has read it."""
        before = self.waiting()
        request = link.send(message, **key)
        end = time.monotonic() + WAIT_S
        while self.waiting() == before and time.monotonic() < end:
            self.store.poll(100.0)
        return request

    def again(self, link, message, request):
        """Repeat it over another connection; the ping behind it is answered once the store has read both."""
        link.send(message, id=request)
        assert self.answer(link, link.send(open_table(QUEUE))) is not None

    def waiting(self):
        row = self.store.tables()[0]
        return row["waiting_tickets"] + row["waiting_samples"]

    def close(self):
        for link in self.links:
            link.close()


@pytest.fixture
def rig(tmp_path):
    made = Rig(tmp_path)
    yield made
    made.close()


def test_a_batch_goes_to_the_new_connection(rig):
    actor, old, new = rig.dial("actor"), rig.dial("learner"), rig.dial("learner")
    rig.answer(actor, actor.send(open_table(QUEUE)))
    request = rig.waits(old, Sample("main"))
    rig.again(new, Sample("main"), request)
    ticket = rig.answer(actor, actor.send(ticket_request()))
    actor.send(write_chunk(rig.slabs, ticket, layout(), 1.0, (1, 0)))
    assert isinstance(rig.answer(new, request), Batch)


def test_a_ticket_goes_to_the_new_connection(rig):
    learner, old, new = rig.dial("learner"), rig.dial("actor"), rig.dial("actor")
    rig.answer(learner, learner.send(open_table(QUEUE)))
    ticket = rig.answer(old, old.send(ticket_request()))
    old.send(write_chunk(rig.slabs, ticket, layout(), 1.0, (1, 0)))
    assert isinstance(rig.answer(learner, learner.send(Sample("main"))), Batch)
    request = rig.waits(old, ticket_request())  # until the learner has made a version of the batch
    rig.again(new, ticket_request(), request)
    assert isinstance(rig.answer(learner, learner.send(Consumed("main", 1, [1, 1], 1))), TableState)
    assert isinstance(rig.answer(new, request), Ticket)
