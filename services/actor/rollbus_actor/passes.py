"""Whole passes: what waits together is decided together, and answered together."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import numpy as np

from rollbus_actor.acts import rows_of
from rollbus_actor.batcher import Batch, Batcher
from rollbus_actor.engines.base import InferenceEngine
from rollbus_actor.fixed import FixedBatch
from rollbus_actor.seeds import DecisionSeeds
from rollbus_actor.session import Session
from rollbus_actor.stats import Stats
from rollbus_core.version import Version
from rollbus_policies.base import Act, Ask, Mode

#: The decisions for the session's tick, all by one version.
Decided = Callable[[Session, Act, Version], None]


class Decoding(Protocol):
    """How the sessions of a batcher get their decisions."""

    #: "whole" or "continuous", for people.
    name: str

    @property
    def open_rows(self) -> int:
        """Rows that are being decided: weights must not change now."""
        ...

    def poll(self) -> bool:
        """Decide what can be decided now; whether anything was done."""
        ...

    def due_in_s(self, now: float) -> float:
        """Seconds until `poll` has something to do; infinite if nobody waits."""
        ...

    def remove(self, session: Session) -> None:
        """The session ends: it waits for no decision any more."""
        ...


class Asking:
    """What is asked for the rows of a batch: seeds, modes, extras."""

    def __init__(self, seeds: DecisionSeeds, mode: Mode, want: tuple[str, ...], hold: int | None) -> None:
        """``hold``: `PolicySpec.held_noise`. ``want``: extras of decisions that are recorded."""
        self.seeds, self.want = seeds, want
        self._mode, self._hold = mode, hold

    def ask(self, batch: Batch) -> Ask:
        """For a whole pass."""
        want = self.want if any(session.record for session in batch.sessions) else ()
        return Ask(self.modes(batch), want, held=self._held(batch))

    def modes(self, batch: Batch) -> Mode | list[Mode]:
        """One mode, or one per row; sessions whose tickets say so explore at random."""
        modes = [self._mode_of(session) for session in batch.sessions]
        if modes.count(modes[0]) == len(modes):
            return modes[0]
        return [mode for mode, size in zip(modes, batch.sizes, strict=True) for _ in range(size)]

    def _mode_of(self, session: Session) -> Mode:
        random = session.writer is not None and session.writer.ticket.mode == "random"
        return "random" if random else self._mode

    def _held(self, batch: Batch) -> np.ndarray | None:
        """The seeds of the steps at which rows drew the noise that they still have."""
        hold = self._hold
        if hold is None:
            return None
        return self.seeds(batch.episode, batch.step - batch.step % hold if hold else 0 * batch.step)


class WholePasses:
    """One forward pass per batch; nothing is open between two of them."""

    name, open_rows = "whole", 0

    def __init__(
        self, engine: InferenceEngine, batcher: Batcher, asking: Asking, decided: Decided, stats: Stats,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._engine, self._batcher, self._asking = engine, batcher, asking
        self._decided, self._stats, self._clock = decided, stats, clock
        self._fixed = engine if isinstance(engine, FixedBatch) else None

    def poll(self) -> bool:
        """All batches that are due."""
        busy = False
        while self._batcher.due_in_s(self._clock()) <= 0 and self._engine.version is not None:
            self._forward(self._batcher.take())
            busy = True
        return busy

    def due_in_s(self, now: float) -> float:
        """See `Decoding`."""
        return self._batcher.due_in_s(now)

    def remove(self, session: Session) -> None:
        """See `Decoding`."""
        self._batcher.remove(session)

    def _forward(self, batch: Batch) -> None:
        seeds, ask = self._asking.seeds(batch.episode, batch.step), self._asking.ask(batch)
        if self._fixed is not None and self._fixed.independent is None:
            spec = batch.sessions[0].spec
            assert spec is not None
            self._fixed.prove(spec, ask)
        began = self._clock()
        forward = self._engine.act(batch.obs, batch.state, ask, seeds)
        self._batcher.took(seeds.size, self._clock() - began)
        self._stats.passed(seeds.size)
        start = 0
        for session, size in zip(batch.sessions, batch.sizes, strict=True):
            alone = len(batch.sessions) == 1
            act = forward.act if alone else rows_of(forward.act, slice(start, start + size))
            start += size
            self._decided(session, act, forward.version)
