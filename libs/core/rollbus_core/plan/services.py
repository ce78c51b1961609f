"""The services as the model sees them: what a poll costs, and which messages follow.

A `poll` is a generator: it yields seconds of work (`float`) or of waiting for a device (`Pause`), and
returns whether it did anything. Costs: costs.py. Who waits for whom: docs/protocol.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rollbus_core.plan.costs import Ends, StageCosts
from rollbus_core.plan.tables import Grant, ModelTable


class Pause(NamedTuple):
    """Time that passes without a core."""

    seconds: float


Poll = Generator[float | Pause, None, bool]
#: (sender, receiver, message): how a message gets across.
Send = Callable[["ModelService", "ModelService", tuple[Any, ...]], None]


@dataclass(eq=False)
class ModelService:
    """Base: an inbox, and a way to send."""

    role: str
    name: str
    send: Send
    idle_s: float = 0.0
    inbox: deque[tuple[Any, ...]] = field(default_factory=deque)
    #: Time in polls that did something.
    busy_s: float = 0.0

    def poll(self) -> Poll:
        """One poll; see the module."""
        raise NotImplementedError


@dataclass(eq=False)
class Slice:
    """Rows that tick together, for ``copies`` hosts at once."""

    num_rows: int
    copies: int
    hub: HubModel
    actor: ActorModel
    fused: bool
    ticked: bool = False
    left: int = 0
    current: Grant | None = None
    next: Grant | None = None


@dataclass(eq=False)
class HubModel(ModelService):
    """Steps the rows of an act and sends the next tick."""

    costs: StageCosts | None = None
    episode_steps: float = 1.0
    num_steps: int = 0

    def poll(self) -> Poll:
        assert self.costs is not None
        busy = bool(self.inbox)
        while self.inbox:
            _, each = self.inbox.popleft()
            ends = self.costs.ends(each.num_rows, self.episode_steps)
            yield self.costs.hub(each.fused).at(each.num_rows, ends)
            self.num_steps += each.num_rows * each.copies
            self.send(self, each.actor, ("tick", each))
        return busy


@dataclass(eq=False)
class ActorModel(ModelService):
    """Decides for all slices whose tick came and whose chunk may go on."""

    costs: StageCosts | None = None
    episode_steps: float = 1.0
    max_batch: int = 1 << 30
    num_decisions: int = 1
    store: StoreModel | None = None
    version: int = 0
    slices: list[Slice] = field(default_factory=list)
    _ready: list[Slice] = field(default_factory=list)

    def poll(self) -> Poll:
        assert self.costs is not None
        busy = bool(self.inbox)
        while self.inbox:
            kind, *rest = self.inbox.popleft()
            if kind == "notice":
                yield self.costs.apply_s
                self.version = max(self.version, rest[0])
                for each in self.slices:
                    self._advance(each)
                continue
            each = rest[0]
            if kind == "grant":
                each.next = rest[1]
            else:
                each.ticked = True
            self._advance(each)
        while self._ready:
            yield from self._forward(self._take())
        return busy

    def _advance(self, each: Slice) -> None:
        """To the next pass, through the end of a chunk if it is full."""
        assert self.store is not None
        if not each.ticked or each in self._ready:
            return
        if not each.left:
            if each.current is not None:
                self.send(self, self.store, ("commit", each, each.current))
                each.current = None
            if each.next is None or each.next.min_version > self.version:
                return
            each.current, each.next = each.next, None
            each.left = each.current.num_decisions
        self._ready.append(each)

    def _take(self) -> list[Slice]:
        chosen, num_rows = [self._ready.pop(0)], 0
        num_rows = chosen[0].num_rows
        while self._ready and num_rows + self._ready[0].num_rows <= self.max_batch:
            chosen.append(self._ready.pop(0))
            num_rows += chosen[-1].num_rows
        return chosen

    def _forward(self, slices: Sequence[Slice]) -> Poll:
        assert self.costs is not None and self.store is not None
        costs = self.costs.actor(all(each.fused for each in slices))
        record_s = len(slices) * costs.record_s
        num_rows = sum(each.num_rows for each in slices)
        all_s = costs.at(len(slices), num_rows, self._ends(slices))
        yield max(0.0, all_s - record_s)
        for each in slices:
            each.ticked = False
            self.send(self, each.hub, ("act", each))
        yield record_s
        for each in slices:
            each.left -= 1
            if not each.left:
                self.send(self, self.store, ("ask", each))
        return True

    def _ends(self, slices: Sequence[Slice]) -> Ends:
        assert self.costs is not None
        each = [self.costs.ends(one.num_rows, self.episode_steps) for one in slices]
        return Ends(sum(ends.ticks for ends in each), sum(ends.episodes for ends in each))


@dataclass(eq=False)
class StoreModel(ModelService):
    """The broker: tickets, chunks, batches, and notices to all actors."""

    costs: StageCosts | None = None
    table: ModelTable | None = None
    learner: LearnerModel | None = None
    actors: list[tuple[ActorModel, int]] = field(default_factory=list)
    num_decisions: int = 1
    sampling: bool = False
    _waiting: deque[Slice] = field(default_factory=deque)

    def poll(self) -> Poll:
        assert self.costs is not None and self.table is not None
        busy = bool(self.inbox)
        while self.inbox:
            kind, *rest = self.inbox.popleft()
            copies = rest[0].copies if kind in ("ask", "commit") else 1
            yield self.costs.store_s * copies
            if kind == "ask":
                self._waiting.append(rest[0])
            elif kind == "commit":
                each, grant = rest
                self.table.commit(grant, grant.num_decisions * each.num_rows * each.copies)
            elif kind == "consumed":
                self.table.consumed()
            elif kind == "sample":
                self.sampling = True
            else:
                for actor, copies in self.actors:
                    yield self.costs.message_s * (copies - 1)
                    self.send(self, actor, ("notice", *rest))
            self._answer()
        return busy

    def _answer(self) -> None:
        """Grants for those who wait, and the batch if it is there."""
        assert self.table is not None and self.learner is not None
        for _ in range(len(self._waiting)):
            each = self._waiting.popleft()
            grant = self.table.place(each.num_rows * each.copies, self.num_decisions)
            if grant is None:
                self._waiting.append(each)
            else:
                self.send(self, each.actor, ("grant", each, grant))
        if self.sampling and (steps := self.table.take()) is not None:
            self.sampling = False
            self.send(self, self.learner, ("batch", steps))


@dataclass(eq=False)
class LearnerModel(ModelService):
    """One update per batch. ``num_ranks`` learners share its work evenly."""

    costs: StageCosts | None = None
    store: StoreModel | None = None
    num_ranks: int = 1
    now_s: Callable[[], float] = lambda: 0.0
    #: (time, steps) of every update.
    updates: list[tuple[float, int]] = field(default_factory=list)

    def poll(self) -> Poll:
        assert self.costs is not None and self.store is not None
        busy = bool(self.inbox)
        while self.inbox:
            _, steps = self.inbox.popleft()
            update_s = self.costs.update_s / self.num_ranks
            yield self.costs.learner_s
            yield Pause(update_s) if self.costs.update_on_device else update_s
            self.updates.append((self.now_s(), steps))
            self.send(self, self.store, ("notice", len(self.updates)))
            self.send(self, self.store, ("consumed",))
            self.send(self, self.store, ("sample",))
        return busy
