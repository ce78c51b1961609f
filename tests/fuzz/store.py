"""Every message of the store plane, its fields fuzzed, into the real store with real slabs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np
from fuzz_services import FedLink, Silent, folder, say_mutated
from harness import Bytes

from rollbus_broker.store.store import Store
from rollbus_core.columns import Layout
from rollbus_core.config.models import BrokerConfig
from rollbus_wire.messages import (
    Annotate,
    Cancel,
    Commit,
    Consumed,
    Durable,
    FetchUnannotated,
    OpenTable,
    Ping,
    Sample,
    Ticket,
    TicketRequest,
)

QUEUE = {
    "sampler": "queue", "batch_steps": 8, "max_lag": 1, "max_bytes": 1 << 17, "late_columns": ["judge"],
    "late_deadline_s": 0.5,
}  # fmt: skip
REPLAY = {"sampler": "replay", "min_steps": 4, "steps_per_update": 8, "max_bytes": 1 << 17}
LAYOUT = Layout.build(
    {"lengths": ("int32", (2,)), "reward": ("float32", (2, 2))}, num_decisions=2, num_rows=2, num_finals=1
)
_LENGTHS = np.array([2, 2], np.int32)
_CELL = np.zeros(LAYOUT.cell_bytes - 64, np.uint8)
EXAMPLES = (
    OpenTable("main", QUEUE, [1, 0]), OpenTable("replay", REPLAY, [1, 0]),
    TicketRequest("main", "hub-0/0", 2, 2, LAYOUT.to_data()),
    TicketRequest("replay", "hub-0/0", 2, 2, LAYOUT.to_data()),
    Commit(1, _LENGTHS, 0, 0, [1, 0], [1, 0]), Cancel([1]), Sample("main"), Sample("replay", 2, 4, 1),
    Consumed("main", 1, [1, 1], 1), Durable("main", 1), Ping(),
    FetchUnannotated("main", "judge"), Annotate("main", "judge", 1, np.zeros((2, 2), np.float32)),
)  # fmt: skip
_turns, _ids = itertools.count(1), itertools.count(1000)
_link = FedLink()
_folder = folder()


def _new_store() -> Store:
    (_folder / "log").unlink(missing_ok=True)
    config = BrokerConfig(slab_bytes=1 << 16, ticket_timeout_s=5.0)
    return Store(_link, _folder, _folder / "log", config, 1, 0.0, log=Silent())


_store = _new_store()


def fuzz(data: bytes) -> None:
    global _store
    turn = next(_turns)
    if turn % 5000 == 0:  # the log of a store that lives for millions of messages fills the memory
        _store.close()
        _store = _new_store()
    now = 0.01 * turn
    source = Bytes(data)
    if source.number(2):
        _exchange(source, now)
    while len(source):
        say_mutated(_link, EXAMPLES, source)
    _store.poll(now)
    _store.tables()


def _exchange(source: Bytes, now: float) -> None:
    """A table, a ticket and a commit of it that is nearly right."""
    table = ("main", "replay")[source.number(2)]
    _link.sent.clear()
    _link.say(OpenTable(table, QUEUE if table == "main" else REPLAY, [1, 0]), id=next(_ids))
    _link.say(TicketRequest(table, "hub-0/0", 2, 2, LAYOUT.to_data()), id=next(_ids))
    _store.poll(now)
    for message in _link.sent:
        if isinstance(message, Ticket):
            commit = Commit(message.ticket, _LENGTHS, 0, 0, [1, 0], [1, 0], cell=_CELL)
            say_mutated(_link, [commit], source)
            return


def seeds() -> Iterable[bytes]:
    for number in range(len(EXAMPLES)):
        yield bytes([0, number, 0, 0, 0, 1, 0])
    yield bytes([1, 0, 0, 5, 6, 7, 8])
