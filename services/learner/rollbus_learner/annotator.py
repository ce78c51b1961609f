"""An annotator: asks the store for chunks that wait for a column, reads them, and attaches it.

It keeps nothing that cannot be lost: a chunk that it does not bring back is given to the next who asks.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import numpy as np
import torch

from rollbus_core.feed import TRAINING_TABLE
from rollbus_core.member import Member
from rollbus_core.requests import Requests
from rollbus_core.service import Service
from rollbus_core.slabs import SlabFolder
from rollbus_learner.gather import SlabReader
from rollbus_learner.rewards import Source
from rollbus_wire.errors import StaleRead
from rollbus_wire.link import Link
from rollbus_wire.messages import Annotate, Annotated, Batch, Fault, FetchUnannotated, Message, Unannotated
from rollbus_wire.polling import Poller

#: A judge (a large model, a person) may think about one chunk for so long.
THINKS_S = 600.0
#: After a refusal, such as that of a table that another run has opened.
RETRY_S = 0.5


class Annotator(Service):
    """Attaches what ``source`` says of each decision as ``column``. Raises what ``source`` raises."""

    role = "annotator"

    def __init__(
        self, name: str, column: str, source: Source, *, registry: Link, store: Link, folder: SlabFolder,
        log: Any,
    ) -> None:  # fmt: skip
        super().__init__(name)
        self.column, self.source, self._log = column, source, log
        self._links = (registry, store)
        self._requests, self._reader = Requests(store), SlabReader(folder)
        self.member: Member = Member(
            registry, self.role, name, stats=lambda: dict(self.outcomes), state=lambda: self.state
        )
        #: How many columns were "attached", "again" or "late", and chunks that were gone ("stale").
        self.outcomes: Counter[str] = Counter()
        self._asked, self._ask_at = False, 0.0

    def start(self, poller: Poller) -> None:
        super().start(poller)
        for link in self._links:
            poller.add(link)
        self.state = "run"

    def poll(self) -> bool:
        self.member.poll()
        busy = self._requests.poll()[0]
        if self.state == "run" and self.member.registered and not self._asked:
            if time.monotonic() >= self._ask_at:
                self._asked = True
                self.member.stage("wait")
                self._requests.ask(FetchUnannotated(TRAINING_TABLE, self.column), self._on_chunk)
        return busy

    def stop(self) -> None:
        self.member.leave("finished" if self.state == "stopped" else "failed")
        for link in self._links:
            link.close()

    def _on_chunk(self, reply: Message) -> None:
        if not isinstance(reply, Unannotated):
            self._refused(reply)
            return
        self.member.stage("annotate", THINKS_S)
        try:
            batch = self._reader.read(Batch(reply.table, 0, [reply.chunk]))
        except StaleRead:  # it went on without
            self.outcomes["stale"] += 1
            self._asked = False
            return
        given = torch.where(batch["valid"], self.source.of(batch).cpu(), 0.0)
        values = np.ascontiguousarray(given.numpy(), np.float32)
        message = Annotate(reply.table, reply.column, int(reply.chunk["sequence"]), values)
        self._requests.ask(message, self._on_annotated)

    def _on_annotated(self, reply: Message) -> None:
        if not isinstance(reply, Annotated):
            self._refused(reply)
            return
        self.outcomes[reply.outcome] += 1
        self._asked = False

    def _refused(self, reply: Message) -> None:
        """Say why, and ask again a little later."""
        self.member.failure = f"{reply.code}: {reply.text}" if isinstance(reply, Fault) else reply.kind
        self._log.warning("refused by the store", answer=self.member.failure)
        self._asked, self._ask_at = False, time.monotonic() + RETRY_S
