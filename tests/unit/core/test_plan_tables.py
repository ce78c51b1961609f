"""The model's tables against the broker's own, through random histories."""

from __future__ import annotations

import random

import numpy as np
import pytest

from rollbus_broker.store.queue_table import QueueTable
from rollbus_broker.store.records import Cell, Chunk, TicketInfo
from rollbus_broker.store.replay_table import ReplayTable
from rollbus_core.feed import TableConfig
from rollbus_core.plan.tables import make_table
from rollbus_core.version import Version


class Real:
    """The broker's table, driven as the model's is."""

    def __init__(self, config: TableConfig) -> None:
        self.table = QueueTable("t", config) if config.sampler == "queue" else ReplayTable("t", config)
        self.table.open(Version(0, 0), 0)
        self.num_tickets = 0

    def place(self, slice: str, num_rows: int, asked: int) -> TicketInfo | None:
        grant = self.table.place(slice, num_rows, asked)
        if grant is None:
            return None
        self.num_tickets += 1
        number = self.num_tickets
        ticket = TicketInfo(number, "a", slice, num_rows, *grant[:3], Cell(1, 0, number))
        self.table.begin(ticket)
        return ticket

    def commit(self, ticket: TicketInfo) -> None:
        lengths = np.full(ticket.num_rows, ticket.num_decisions, np.int32)
        made_by = [Version(0, self.table.version.number)] * 2
        sequence = self.table.sequence + 1
        self.table.commit(Chunk(sequence, ticket.number, ticket.cell, ticket.slice, lengths, 0, 0, *made_by))


@pytest.mark.parametrize("seed", range(8))
def test_queue_grants_and_batches_are_the_brokers(seed: int) -> None:
    draw = random.Random(seed)
    config = TableConfig(batch_steps=draw.choice([64, 96, 100]), max_lag=draw.choice([0, 1, 2]))
    real, model, open_chunks, num_batches = Real(config), make_table(config), [], 0
    for _ in range(400):
        rows, asked = draw.choice([4, 8, 12]), draw.choice([2, 4])
        ticket, grant = real.place("s", rows, asked), model.place(rows, asked)
        assert (ticket is None) == (grant is None)
        if ticket is not None:
            assert (ticket.num_decisions, ticket.batch, ticket.min_version.number) == tuple(grant)
            open_chunks.append((ticket, grant))
        if open_chunks and (ticket is None or draw.random() < 0.6):
            ended, its = open_chunks.pop(draw.randrange(len(open_chunks)))
            real.commit(ended)
            model.commit(its, ended.steps)
        complete, steps = real.table.complete([]), model.take()
        assert complete == (steps is not None)
        if complete:
            num_batches += 1
            chunks = real.table.deliver(real.table.delivered + 1, ("l", num_batches))
            assert steps == sum(chunk.steps for chunk in chunks)
            real.table.consumed(real.table.delivered, Version(0, num_batches), num_batches)
            model.consumed()
    assert num_batches > 5


def test_replay_grants_and_draws_follow_the_ratio() -> None:
    config = TableConfig(sampler="replay", steps_per_update=32, min_steps=0)
    real, model, updates = Real(config), make_table(config), 0
    for _ in range(200):
        ticket, grant = real.place("s", 4, 4), model.place(4, 4)
        assert (ticket is None) == (grant is None)
        if ticket is None:
            assert real.table.can_draw()
        else:
            real.commit(ticket)
            model.commit(grant, ticket.steps)
        steps = model.take()
        assert (steps is not None) == real.table.can_draw()
        if steps is not None:
            updates += 1
            real.table.consumed(0, Version(0, updates), updates)
            model.consumed()
    assert updates > 50
