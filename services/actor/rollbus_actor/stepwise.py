"""Continuous batching: rows are admitted between two steps (tokens), and a session is answered with its last.

All rows of a decision are decided by one version. When a newer one can be read nobody is admitted until the
open rows are done, which takes no longer than the longest completion; then it is taken.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from rollbus_actor.acts import joined, rows_of
from rollbus_actor.batcher import Batcher
from rollbus_actor.engines.base import InferenceEngine
from rollbus_actor.passes import Asking, Decided
from rollbus_actor.session import Session
from rollbus_actor.stats import Stats
from rollbus_core.config.models import ActorConfig
from rollbus_policies.base import Act, Decoder, PolicySpec
from rollbus_wire.errors import ConfigError

#: `auto` decodes continuously where a decision may take so many steps. Tokens/s over those of whole passes
#: (benchmarks/bench_decoding.py, docs/results/speed.md; a net of 2 x 64, lengths geometric): with at most 32
#: tokens 1.0 to 1.3, 64: 1.2 to 1.7, 128: 1.5 to 2.0.
WORTH_STEPS = 64


class _Open:
    """A session whose rows are open, and those decisions that are done."""

    def __init__(self, numbers: np.ndarray) -> None:
        #: The rows' numbers in the decoder.
        self.numbers = numbers
        self._done: list[tuple[np.ndarray, Act]] = []
        self._missing = len(numbers)

    def add(self, numbers: np.ndarray, act: Act) -> bool:
        """Some rows are done; whether all are."""
        self._done.append((numbers, act))
        self._missing -= len(numbers)
        return not self._missing

    def act(self) -> Act:
        """All decisions, in the order of the rows."""
        order = np.argsort(np.concatenate([numbers for numbers, _ in self._done]))
        return rows_of(joined([act for _, act in self._done]), order)


class Stepwise:
    """One step of all open rows per turn."""

    name = "continuous"

    def __init__(
        self, decoder: Decoder, engine: InferenceEngine, batcher: Batcher, asking: Asking, decided: Decided,
        stats: Stats, max_rows: int, may_admit: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """``may_admit``: false while newer weights wait for the open rows to end."""
        self._decoder, self._engine, self._batcher, self._asking = decoder, engine, batcher, asking
        self._decided, self._stats, self._clock = decided, stats, clock
        self._max_rows, self._may_admit = max_rows, may_admit
        self._open: dict[Session, _Open] = {}
        self._session_of: dict[int, Session] = {}

    @property
    def open_rows(self) -> int:
        """See `Decoding`."""
        return self._decoder.num_rows

    def poll(self) -> bool:
        """Admit who waits, then one step."""
        admitted = self._admit()
        num_rows = self._decoder.num_rows
        if not num_rows:
            return admitted
        done = self._decoder.step()
        self._stats.stepped(num_rows)
        if done is not None:
            self._sort(*done)
        return True

    def due_in_s(self, now: float) -> float:
        """See `Decoding`."""
        return 0.0 if self._decoder.num_rows else self._batcher.due_in_s(now)

    def remove(self, session: Session) -> None:
        """See `Decoding`."""
        self._batcher.remove(session)
        found = self._open.pop(session, None)
        if found is not None:
            self._decoder.drop(found.numbers)
            for number in found.numbers.tolist():
                self._session_of.pop(number, None)

    def _admit(self) -> bool:
        admitted = False
        while self._batcher.due_in_s(self._clock()) <= 0 and self._engine.version is not None:
            room = self._max_rows - self._decoder.num_rows
            if not self._may_admit() or (self._decoder.num_rows and self._batcher.next_rows > room):
                break
            batch = self._batcher.take(room)
            seeds = self._asking.seeds(batch.episode, batch.step)
            numbers = self._decoder.admit(batch.obs, self._asking.modes(batch), seeds)
            self._stats.num_passes += 1
            for session, own in zip(
                batch.sessions, np.split(numbers, np.cumsum(batch.sizes)[:-1]), strict=True
            ):
                self._open[session] = _Open(own)
                self._session_of |= dict.fromkeys(own.tolist(), session)
            admitted = True
        return admitted

    def _sort(self, numbers: np.ndarray, act: Act) -> None:
        """Decisions that are done, to their sessions."""
        places: dict[Session, list[int]] = {}
        for place, number in enumerate(numbers.tolist()):
            places.setdefault(self._session_of.pop(number), []).append(place)
        version = self._engine.version
        assert version is not None
        for session, own in places.items():
            # One whose hub was lost while another one was answered is not there any more.
            found = self._open.get(session)
            if found is not None and found.add(numbers[own], rows_of(act, own)):
                del self._open[session]
                self._stats.num_decisions += len(found.numbers)
                self._decided(session, found.act(), version)


def decoder_for(
    config: ActorConfig, engine: Any, spec: PolicySpec, want: tuple[str, ...], *, exact: bool
) -> Decoder | None:
    """The decoder that ``config.decoding`` asks for; None: whole passes.

    ``exact``: results must not depend on who else is decided; then passes are whole. Raises `ConfigError` if
    continuous decoding is asked for of a policy or an engine that cannot.
    """
    asked = config.decoding == "continuous"
    if exact or config.decoding == "whole" or not (asked or spec.decoding_steps >= WORTH_STEPS):
        return None
    reason = ""
    if not spec.decoding_steps:
        reason = "the policy decides at once, not step by step"
    elif not hasattr(engine, "decoder"):
        reason = f"engine {config.engine!r}, or what is put around it, has whole passes only"
    if not reason:
        decoder: Decoder = engine.decoder(want)
        return decoder
    if asked:
        raise ConfigError(f"actor.decoding is continuous, but {reason}; set actor.decoding: auto")
    return None
