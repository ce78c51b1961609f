"""The inference actor: holds slices, decides for their rows in batches, records what came of it.

It keeps nothing that cannot be lost: recurrent state travels to the hub with every decision, chunks
belong to the store. docs/protocol.md, "Data plane" and "Store plane".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rollbus_actor.batcher import Batcher
from rollbus_actor.chunks import Decision
from rollbus_actor.engines.base import InferenceEngine
from rollbus_actor.ensemble import Ensembled
from rollbus_actor.fixed import FixedBatch
from rollbus_actor.holdings import Holdings
from rollbus_actor.passes import Asking, Decoding, WholePasses
from rollbus_actor.recorder import Recorder
from rollbus_actor.seeds import DecisionSeeds
from rollbus_actor.sent_log import SentLog
from rollbus_actor.session import Session
from rollbus_actor.shared import SharedMemory
from rollbus_actor.stats import Stats
from rollbus_actor.stepwise import Stepwise, decoder_for
from rollbus_actor.versions import Versions
from rollbus_core.config.models import ActorConfig
from rollbus_core.feed import TRAINING_TABLE, Feed
from rollbus_core.member import Member
from rollbus_core.requests import Requests
from rollbus_core.rng import stream
from rollbus_core.service import Service
from rollbus_core.slabs import SlabFolder
from rollbus_core.version import Version
from rollbus_core.weights.base import WeightSource
from rollbus_policies.base import Act, Ask, Mode, PolicySpec
from rollbus_wire.link import Link
from rollbus_wire.messages import (
    Assign,
    Message,
    Notice,
    Ping,
    Pong,
    Registered,
    Release,
    Released,
    from_data,
)
from rollbus_wire.polling import Poller


class Actor(Service):
    """Decides for the slices that the registry assigns, or that `take` names.

    ``feed``, ``store``: without both nothing is recorded. ``weights``: where versions come from; without
    it the engine's own act. ``mode``: "sample" or "mode". ``noise_stream`` names the random numbers.
    ``deterministic``: each slice has a pass of its own and weights change only between chunks.
    ``fixed_batch`` > 0: every pass has that many rows (`FixedBatch`). ``audit`` is told of every
    commit and its answer. ``memory``: the folder in which hubs of the same memory put large observations.
    """

    role = "actor"

    def __init__(
        self, name: str, config: ActorConfig, *, engine: InferenceEngine, policy_spec: PolicySpec,
        connect: Callable[[str], Link], feed: Feed | None = None, seed: int = 0,
        noise_stream: str = "action-noise", mode: Mode = "sample", deterministic: bool = False,
        registry: Link | None = None, store: Link | None = None, slabs: SlabFolder | None = None,
        weights: WeightSource | None = None, fixed_batch: int = 0, table: str = TRAINING_TABLE,
        audit: SentLog | None = None, memory: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        super().__init__(name)
        if config.temporal_ensemble is not None:
            engine = Ensembled(engine, policy_spec, config.temporal_ensemble)
            policy_spec = engine.spec
        self.config, self.policy_spec, self._clock = config, policy_spec, clock
        self.engine: InferenceEngine = FixedBatch(engine, fixed_batch, policy_spec) if fixed_batch else engine
        self._versions = Versions(weights, self.engine, clock) if weights is not None else None
        self._deterministic = deterministic
        #: The version that waiting slices were last told of.
        self._used = self.engine.version
        self._registry, self._store = registry, store
        self._batcher = Batcher(config.max_batch, config.batch_wait_ms / 1000.0, alone=deterministic)
        self.stats = Stats(clock())
        self.recorder: Recorder | None = None
        if feed is not None and store is not None:
            self.recorder = Recorder(
                Requests(store), slabs, feed, policy_spec, policy_spec.frame_stack, table,
                self._values, self._advance, audit,
            )  # fmt: skip
        self.holdings = Holdings(
            self, connect, policy_spec, record=self.recorder is not None, alone=registry is None,
            memory=SharedMemory(memory), clock=clock,
        )  # fmt: skip
        asking = Asking(
            DecisionSeeds(stream(seed, noise_stream)), mode, tuple(feed.extras) if feed is not None else (),
            policy_spec.held_noise,
        )  # fmt: skip
        self._decoding = self._make_decoding(asking, exact=deterministic or fixed_batch > 0)

    def _make_decoding(self, asking: Asking, *, exact: bool) -> Decoding:
        decoder = decoder_for(self.config, self.engine, self.policy_spec, asking.want, exact=exact)
        if decoder is None:
            return WholePasses(self.engine, self._batcher, asking, self._decided, self.stats, self._clock)
        return Stepwise(
            decoder, self.engine, self._batcher, asking, self._decided, self.stats, self.config.max_batch,
            lambda: self._versions is None or not self._versions.due, self._clock,
        )  # fmt: skip

    # --- service ---------------------------------------------------------------------------

    def start(self, poller: Poller) -> None:
        super().start(poller)
        if self._registry is not None:
            poller.add(self._registry)
            self.member = Member(
                self._registry, self.role, self.name, stats=self.numbers,
                state=lambda: self.state, on_registered=self._registered,
            )  # fmt: skip
        if self._store is not None:
            poller.add(self._store)
        self._become_ready()
        self.holdings.start(poller)

    def poll(self) -> bool:
        began = self._clock()
        busy = self._poll_registry()
        if self.recorder is not None:
            busy |= self.recorder.poll(began)
        self._apply_weights()
        busy |= self.holdings.poll(began)
        busy |= self._use_new_version()
        busy |= self._decoding.poll()
        if self.state == "drain" and not self.holdings.sessions and not self._open_commits():
            self.state = "stopped"
        if busy:
            self.stats.busy_s += self._clock() - began
        return busy

    def wake_in_s(self) -> float:
        if self.engine.version is None:
            return 0.1
        return min(0.1, self._decoding.due_in_s(self._clock()))

    @property
    def awaits(self) -> str:
        return super().awaits or ("the first weights of a learner" if self.engine.version is None else "")

    def drain(self) -> None:
        """Give all slices up at their next tick; finished when their chunks are committed."""
        if self.state != "stopped":
            self.state = "drain"
            for session in list(self.holdings.sessions.values()):
                self.holdings.release(session, "the actor stops")

    def stop(self) -> None:
        self.holdings.close("the actor stops")
        if self._versions is not None:
            self._versions.close()
        if self.member is not None:
            self.member.leave("stopped")
        for link in (self._registry, self._store):
            if link is not None:
                link.close()

    def take(self, slice: str, endpoint: str, assignment: Sequence[int] = (0, 0)) -> None:
        """Hold ``slice`` of the hub at ``endpoint``; without a broker the assignment is (0, 0)."""
        self.holdings.take(slice, endpoint, assignment)

    # --- registry --------------------------------------------------------------------------

    def _poll_registry(self) -> bool:
        if self.member is None:
            return False
        others = self.member.poll()
        for envelope in others:
            self._heard(envelope.message)
        return bool(others)

    def _heard(self, message: Message) -> None:
        if isinstance(message, Notice):
            self._noticed(message)
        elif isinstance(message, Assign):
            if self.state == "run":
                self.holdings.take(message.slice, message.endpoint, message.assignment)
            else:
                self.tell(Released(message.slice, message.assignment, f"the actor is in state {self.state}"))
        elif isinstance(message, Release):
            session = self.holdings.sessions.get(message.slice)
            if session is None:
                self.tell(Released(message.slice, message.assignment, "not held"))
            else:
                session.assignment = list(message.assignment)
                self.holdings.release(session, "released")
        elif isinstance(message, Ping):
            self.tell(Pong())

    def tell(self, message: Message) -> None:
        """Tell the registry, if there is one."""
        if self.member is not None:
            self.member.send(message)

    def _registered(self, message: Registered) -> None:
        for notice in message.notices:
            self._noticed(from_data("notice", notice))

    def numbers(self) -> dict[str, Any]:
        """For heartbeats: what was decided, what is held, what was lost and why."""
        now = self._clock()
        numbers: dict[str, Any] = {
            **self.stats.numbers(now, self.holdings.account(now)),
            **self.holdings.counts,
            "held": {s.slice: s.endpoint for s in self.holdings.sessions.values() if s.held},
            "version": self.engine.version.number if self.engine.version is not None else -1,
            "engine": getattr(self.engine, "choice", self.config.engine),
            "decoding": self._decoding.name,
        }
        if self._versions is not None:
            numbers |= self._versions.numbers()
        if self.recorder is not None:
            numbers["chunks"] = self.recorder.num_chunks
            numbers |= {f"dropped_{reason}": n for reason, n in self.recorder.dropped.items()}
        return numbers

    # --- weights ---------------------------------------------------------------------------

    def _noticed(self, message: Message) -> None:
        if self._versions is not None and isinstance(message, Notice):
            self._versions.noticed(message)

    def _apply_weights(self) -> None:
        """Take the newest version, if there is a new one and no row and no deterministic chunk is open."""
        if self._versions is None or not self._versions.pending or self._decoding.open_rows:
            return
        if self._deterministic and any(s.writer is not None for s in self.holdings.sessions.values()):
            return
        applied = self._versions.apply()
        if applied is not None:
            self.tell(applied)
        if self.member is not None:
            self.member.failure = self._versions.last_problem

    def _use_new_version(self) -> bool:
        """Slices whose tickets need a newer version than before may go on."""
        if self.engine.version == self._used:
            return False
        self._used = self.engine.version
        self._become_ready()
        for session in list(self.holdings.sessions.values()):
            if session.state == "ticket":
                self._advance(session)
        return True

    def _become_ready(self) -> None:
        if self.state == "start" and self.engine.version is not None:
            self.state = "run"
            if self.member is not None:
                self.member.stage("run")

    # --- deciding --------------------------------------------------------------------------

    def ticked(self, session: Session) -> None:
        """A tick of ``session`` came."""
        self._advance(session)

    def forget(self, session: Session) -> None:
        """The session ends: commit what it has, and give its ticket back.

        A deterministic run does not learn from a part of a chunk: it makes it all again from a checkpoint.
        """
        self._decoding.remove(session)
        if self.recorder is not None and session.record:
            if session.writer is not None:
                part = self._deterministic and not session.writer.whole
                (self.recorder.discard if part else self.recorder.close)(session)
            self.recorder.leave(session)

    def _advance(self, session: Session) -> None:
        """Bring the session's tick as far as it can go: to the next forward pass."""
        if session.tick is None or session.state == "ready" or session.closed:
            return
        if session.record and not self._may_decide(session):
            return
        if not session.taken:
            session.take_frames()
        if session.release_by is not None:
            self.holdings.give_up(session)
            return
        if session.state == "ticket":
            self.stats.ticket_wait_s += self._clock() - session.waits_since
        session.state = "ready"
        self._batcher.add(session, self._clock())

    def _may_decide(self, session: Session) -> bool:
        """Book the tick's outcomes, and have a chunk for its decisions; False: a ticket is awaited."""
        recorder = self.recorder
        assert recorder is not None
        while True:
            writer = session.writer
            if writer is not None and not session.taken and recorder.too_narrow(session):
                recorder.close(session)
            elif writer is not None:
                if not session.taken:
                    recorder.outcome(session)
                    session.take_frames()
                if session.release_by is not None:
                    return True
                if not recorder.ends_before(session):
                    return True
                recorder.close(session)
            elif session.release_by is not None:
                return True
            else:
                self._apply_weights()
                if self.engine.version is None or not recorder.open(session, self.engine.version):
                    self._wait_for_ticket(session)
                    return False

    def _wait_for_ticket(self, session: Session) -> None:
        if not session.taken and session.parked is None:
            session.take_frames()
        if session.state != "ticket":
            session.state, session.waits_since = "ticket", self._clock()

    def _decided(self, session: Session, act: Act, version: Version) -> None:
        """Answer the session's tick, then record what was decided."""
        tick = session.tick
        assert tick is not None
        before = None if session.carry is None else session.carry[tick.rows]
        if session.carry is not None and act.state is not None:
            session.carry[tick.rows] = act.state
        if not self.holdings.answer(session, act):
            return
        session.tick, session.state = None, "tick"
        if self.recorder is None or not session.record:
            self.stats.num_unrecorded += tick.rows.size
            return
        self.recorder.decide(
            session,
            Decision(
                rows=tick.rows, whole=session.whole, obs=tick.obs, act=act, version=version.pack(),
                source=self.recorder.source(session) if act.source is None else act.source,
                episode=tick.episode, step=tick.step, state=before,
                history=None if session.frames is None else _history(session, tick.rows),
            ),
        )  # fmt: skip

    def _values(self, obs: Mapping[str, np.ndarray], state: np.ndarray | None) -> np.ndarray:
        """The critic's values, without deciding anything."""
        num = len(next(iter(obs.values())))
        ask = Ask("mode", ("value",))
        return self.engine.act(obs, state, ask, np.zeros(num, np.uint64)).act.extras["value"]

    def _open_commits(self) -> int:
        return self.recorder.open_commits if self.recorder is not None else 0


def _history(session: Session, rows: np.ndarray) -> Callable[[], dict[str, np.ndarray]]:
    frames = session.frames
    assert frames is not None
    return lambda: frames.history(rows)
