"""Actions for whoever asks: one policy behind one socket, without hub, broker or episodes.

Requests that have arrived are decided in one pass. Answers do not depend on who else asks, beyond rounding.
docs/protocol.md, "Policy plane".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from rollbus_core.pace import Pace
from rollbus_core.service import Service
from rollbus_policies.base import Ask, Mode, PolicySpec
from rollbus_wire.errors import PeerLost, SpecError
from rollbus_wire.limits import MAX_ROWS
from rollbus_wire.link import Envelope, Link
from rollbus_wire.messages import Decide, Decided, Fault, Message, Ping, Pong
from rollbus_wire.polling import Poller, drain
from rollbus_wire.spec import EnvSpec


class Request(NamedTuple):
    """A `Decide` that has been checked."""

    peer: bytes
    id: int
    obs: Mapping[str, np.ndarray]
    state: np.ndarray | None
    seeds: np.ndarray | None
    num_rows: int


class PolicyService(Service):
    """Answers `Decide` on ``link``, a bound one, with ``engine``."""

    role = "policy"

    def __init__(
        self, link: Link, engine: Any, spec: EnvSpec, policy: PolicySpec, *, max_batch: int = 1024,
        spin_s: float = 0.0, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """``spin_s``: after a request, look for the next one that long without sleeping."""
        super().__init__("policy-0")
        self._spin_s, self._clock, self._spin_until = spin_s, clock, 0.0
        self.link, self.engine, self._pace = link, engine, Pace(max_batch)
        stack = (policy.frame_stack,) if policy.frame_stack > 1 else ()
        self._expected = {
            key: (np.dtype(array.dtype), (*stack, *array.shape)) for key, array in spec.observation.items()
        }
        self._state_size, self._chunked = policy.state_size, policy.chunk > 1
        #: What was heard and did not fit into the last pass, at most one.
        self._next: list[Request] = []
        self.num_requests = self.num_rows = self.num_passes = 0
        #: Requests that broke the spec, and answers that nobody was there for.
        self.refused = self.unanswered = 0

    def start(self, poller: Poller) -> None:
        super().start(poller)
        poller.add(self.link)
        self.state = "run"

    def stop(self) -> None:
        self.link.close()

    def poll(self) -> bool:
        """Decide for what has arrived: at most ``max_batch`` rows of it, or what passes are fast with.

        One request is never divided; one that would make a pass larger waits for the next.
        """
        requests, self._next = self._next, []
        num_rows, heard = sum(request.num_rows for request in requests), bool(requests)
        for envelope in drain(self.link):
            heard = True
            request = self._heard(envelope)
            if request is None:
                continue
            if requests and num_rows + request.num_rows > self._pace.limit:
                self._next.append(request)
                break
            requests.append(request)
            num_rows += request.num_rows
            if num_rows >= self._pace.limit:
                break
        if requests:
            self._decide(requests, num_rows)
            self._spin_until = self._clock() + self._spin_s
        return heard

    def wake_in_s(self) -> float:
        return 0.0 if self._spin_s and self._clock() < self._spin_until else 0.1

    def _heard(self, envelope: Envelope) -> Request | None:
        message = envelope.message
        if isinstance(message, Ping):
            self._send(Pong(), envelope.peer, envelope.id)
        if not isinstance(message, Decide):
            return None
        try:
            return self._checked(envelope, message)
        except SpecError as error:
            self.refused += 1
            self._send(Fault(error.code, str(error)), envelope.peer, envelope.id)
            return None

    def _checked(self, envelope: Envelope, message: Decide) -> Request:
        obs, num_rows = message.obs, -1
        for key, (dtype, shape) in self._expected.items():
            array = obs.get(key)
            if not isinstance(array, np.ndarray) or array.dtype != dtype or array.shape[1:] != shape:
                raise SpecError(f"obs[{key!r}] must be {dtype} {_rows(shape)}, {_said(array)}")
            if not array.ndim:
                raise SpecError(f"obs[{key!r}] must be {dtype} {_rows(shape)}, {_said(array)}")
            if dtype.kind == "f" and not np.isfinite(array).all():
                raise SpecError(f"obs[{key!r}] holds a number that is not finite")
            if num_rows not in (-1, len(array)):
                raise SpecError(f"obs[{key!r}] has {len(array)} rows, other keys have {num_rows}")
            num_rows = len(array)
        if not 1 <= num_rows <= MAX_ROWS:
            raise SpecError(f"a request of {num_rows} rows; 1 to {MAX_ROWS}")
        state = None
        if self._state_size:
            state = _state(message.carry, num_rows, self._state_size)
        seeds = message.seeds
        if seeds is not None and (seeds.dtype != np.uint64 or seeds.shape != (num_rows,)):
            raise SpecError(f"seeds must be uint64 [{num_rows}], {_said(seeds)}")
        return Request(envelope.peer, envelope.id, obs, state, seeds, num_rows)

    def _decide(self, requests: list[Request], num_rows: int) -> None:
        obs, state, mode, seeds = self._join(requests, num_rows)
        began = self._clock()
        forward = self.engine.act(obs, state, Ask(mode), seeds)
        self._pace.took(num_rows, self._clock() - began)
        act, version = forward.act, list(forward.version)
        carry = None if act.state is None else np.ascontiguousarray(act.state, np.float32).view(np.uint8)
        start = 0
        for request in requests:
            rows = slice(start, start + request.num_rows)
            start += request.num_rows
            after = None if carry is None else carry[rows]
            answer = Decided(act.env_action[rows], version, after, self._chunked)
            self._send(answer, request.peer, request.id)
        self.num_requests += len(requests)
        self.num_rows += num_rows
        self.num_passes += 1

    def _join(self, requests: list[Request], num_rows: int) -> tuple[Any, Any, Mode | list[Mode], np.ndarray]:
        first = requests[0]
        if len(requests) == 1:
            obs, state = first.obs, first.state
        else:
            obs = {key: np.concatenate([r.obs[key] for r in requests]) for key in self._expected}
            state = np.concatenate([r.state for r in requests]) if first.state is not None else None
        if all(request.seeds is None for request in requests):
            return obs, state, "mode", np.zeros(num_rows, np.uint64)
        none = {request.num_rows: np.zeros(request.num_rows, np.uint64) for request in requests}
        seeds = [none[r.num_rows] if r.seeds is None else r.seeds for r in requests]
        modes: list[Mode] = []
        for request in requests:
            modes += ["mode" if request.seeds is None else "sample"] * request.num_rows
        return obs, state, modes, np.concatenate(seeds)

    def _send(self, message: Message, peer: bytes, re: int) -> None:
        try:
            self.link.send(message, to=peer, re=re)
        except PeerLost:
            self.unanswered += 1


def _state(carry: np.ndarray | None, num_rows: int, size: int) -> np.ndarray:
    if carry is None:
        return np.zeros((num_rows, size), np.float32)
    if carry.dtype != np.uint8 or carry.shape != (num_rows, 4 * size):
        raise SpecError(f"carry must be uint8 [{num_rows}, {4 * size}] of an earlier answer, {_said(carry)}")
    return np.ascontiguousarray(carry).view(np.float32)


def _rows(shape: tuple[int, ...]) -> str:
    return f"[{', '.join(['R', *map(str, shape)])}]"


def _said(array: Any) -> str:
    return f"came {array.dtype} {list(array.shape)}" if isinstance(array, np.ndarray) else "none came"
