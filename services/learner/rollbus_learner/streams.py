"""The streams of a learner: their tables in the store, and one batch of all of them.

A batch has the main stream's columns under their own names, those of another stream under "<stream>/".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from rollbus_core.feed import Feed
from rollbus_core.requests import Requests
from rollbus_core.slabs import SlabFolder
from rollbus_core.version import Version
from rollbus_learner.expert_chunks import ExpertChunks
from rollbus_learner.gather import SlabReader
from rollbus_wire.errors import ConfigError
from rollbus_wire.link import Link
from rollbus_wire.messages import (
    Batch,
    Consumed,
    Durable,
    Fault,
    Message,
    OpenTable,
    Sample,
    TableState,
)

if TYPE_CHECKING:
    from rollbus_learner import algorithm

#: What was executed, in chunks from data sets; actors record ``action``, what the policy scores.
EXECUTED = "env_action"
#: What is said of a delivery number that came before: (table, number).
_AGAIN = (
    "table {0} numbers a delivery {1} that the learner has had: the store's log lost its end; the table is "
    "opened anew, nothing is learned twice"
)


class Streams:
    """All tables of ``feeds``, the main one first. ``on_refused`` hears of (request, answer)."""

    def __init__(
        self, feeds: Mapping[str, Feed], store: Link, folder: SlabFolder, policy: Any,
        on_refused: Callable[[str, Message], Any],
    ) -> None:  # fmt: skip
        self.feeds, self.main = dict(feeds), next(iter(feeds))
        chunks = [name for name, feed in feeds.items() if feed.unit == "chunk" and name != self.main]
        if chunks:
            raise ConfigError(f"stream {chunks[0]!r} gives whole chunks; only the main stream may")
        self._policy, self._on_refused = policy, on_refused
        self._requests = Requests(store)
        self._folder = folder
        self._readers = {
            name: SlabReader(
                folder,
                feed.n_step,
                feed.hindsight,
                sequences=feed.unit == "sequence",
                expert=None if feed.expert is None else ExpertChunks(policy.spec.chunk, feed.episode_success),
            )  # fmt: skip
            for name, feed in feeds.items()
        }
        self._opening: set[str] = set()
        #: All tables are open.
        self.opened = False
        #: Monotonic time at which `sample` asked last.
        self.asked = 0.0
        #: Stream -> its batch for the next update; None: it is asked for.
        self._batches: dict[str, Batch | None] = {}
        #: Stream -> number of its delivery that came last.
        self._last: dict[str, int] = {}
        #: Streams of which a delivery came whose number had been there.
        self._outrun: set[str] = set()

    # --- the store -------------------------------------------------------------------------------

    def poll(self) -> bool:
        """Take the store's answers; whether there were any."""
        return self._requests.poll()[0]

    @property
    def waiting(self) -> bool:
        """Whether something was asked for that has not come."""
        return bool(len(self._requests)) or bool(self._batches)

    def open(self, version: Version, applied: Mapping[str, int], on_open: Callable[[], Any]) -> None:
        """Open all tables for a learner that is at ``version`` and has applied these deliveries."""
        self._batches, self._opening, self._last = {}, set(self.feeds), dict(applied)
        for name, feed in self.feeds.items():
            message = OpenTable(
                name, feed.table.model_dump(), list(version), applied.get(name, 0), name in self._outrun
            )
            self._requests.ask(message, partial(self._on_open, name, on_open))

    def _on_open(self, name: str, on_open: Callable[[], Any], reply: Message) -> None:
        if not isinstance(reply, TableState):
            self._refused("open table", reply)
            return
        self._opening.discard(name)
        self._outrun.discard(name)
        if not self._opening and not self.opened:
            self.opened = True
            on_open()

    def sample(self, update: int, seed: Callable[[str], int]) -> None:
        """Ask for the batches of update number ``update``; ``seed`` gives each stream's."""
        due = [name for name, feed in self.feeds.items() if name == self.main or update % feed.every == 0]
        self._batches, self.asked = dict.fromkeys(due), time.monotonic()
        for name in due:
            feed, replay = self.feeds[name], self.feeds[name].unit != "chunk"
            message = Sample(
                name,
                feed.num_batches if replay else 0,
                feed.batch_size if replay else 0,
                seed(name),
                feed.ahead if feed.unit == "step" else 0,
            )
            self._requests.ask(message, partial(self._on_sample, name))

    def _on_sample(self, name: str, reply: Message) -> None:
        if not isinstance(reply, Batch):
            self._refused("sample", reply)
        elif reply.sequence <= self._last.get(name, 0):
            self._outrun.add(name)
            self._refused("sample", Fault(ConfigError.code, _AGAIN.format(name, reply.sequence)))
        elif name in self._batches:
            self._batches[name], self._last[name] = reply, reply.sequence

    def _refused(self, what: str, reply: Message) -> None:
        """The store does not have what it had: tables are to be opened again, from what is applied."""
        self.opened, self._batches = False, {}
        self._on_refused(what, reply)

    def take(self) -> dict[str, Batch] | None:
        """The batches of one update, once, when all are there."""
        if not self._batches or any(batch is None for batch in self._batches.values()):
            return None
        batches, self._batches = self._batches, {}
        return {name: batch for name, batch in batches.items() if batch is not None}

    def consumed(
        self, sequences: Mapping[str, int], version: Version, updates: int,
        priorities: Mapping[str, tuple[Any, Any]] | None = None,
    ) -> None:  # fmt: skip
        """An update has made ``version`` from these deliveries; ``priorities``: `Algorithm.priorities`."""
        for name, sequence in sequences.items():
            steps, new = (priorities or {}).get(name, (None, None))
            self._requests.ask(Consumed(name, sequence, list(version), updates, steps, new), lambda _: None)

    def durable(self, applied: Mapping[str, int]) -> None:
        """A checkpoint holds deliveries up to these."""
        for name, sequence in applied.items():
            self._requests.ask(Durable(name, sequence), lambda _: None)

    # --- batches ---------------------------------------------------------------------------------

    @property
    def stale_chunks(self) -> int:
        """Chunks that were gone before they were read."""
        return sum(reader.stale_chunks for reader in self._readers.values())

    @property
    def corrupt_chunks(self) -> int:
        """Chunks whose bytes were not those that were committed."""
        return sum(reader.corrupt_chunks for reader in self._readers.values())

    @property
    def unread(self) -> Mapping[int, str]:
        """Places of the main stream's last batch that were not read, and why."""
        return self._readers[self.main].unread

    def lost(self, batches: Mapping[str, Batch]) -> None:
        """Nothing of the main stream's batch was readable."""
        self._readers[self.main].stale_chunks += len(batches[self.main].chunks)

    @property
    def slabs(self) -> Any:
        """The main stream's slabs, for audits."""
        return self._readers[self.main].slabs

    def read(self, batches: Mapping[str, Batch]) -> algorithm.Batch:
        """One batch of CPU tensors, valid until the next call. Raises `StaleRead`."""
        columns: algorithm.Batch = {}
        for name, message in batches.items():
            prefix = "" if name == self.main else f"{name}/"
            for key, column in self._with_action(self._readers[name].read(message)).items():
                columns[prefix + key] = column
        return columns

    def _with_action(self, batch: algorithm.Batch) -> algorithm.Batch:
        """Add ``action``, as the policy scores it, where a batch says what was executed."""
        if EXECUTED in batch:
            executed, lead = batch[EXECUTED].numpy(), batch["num_steps"].shape
            stored = self._policy.from_env_action(executed.reshape(-1, *executed.shape[len(lead) :]))
            batch["action"] = torch.from_numpy(stored.reshape(*lead, *stored.shape[1:]))
        return batch
