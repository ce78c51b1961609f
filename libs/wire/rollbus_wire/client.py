"""The caller's side of the peer plane, blocking: for debugging, tests and small scripts.

A hub does the same without blocking. Every call has a deadline; a reply that comes after it is
discarded and counted, never taken for the answer to the next request.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Union

import numpy as np

from .env import StepResult
from .errors import DeadlineExceeded, FaultReceived, PeerLost, WireError
from .gate import Gate
from .keys import load as load_key
from .link import Envelope
from .messages import (
    PROTOCOL,
    Fault,
    GetState,
    Goodbye,
    Hello,
    Message,
    Observe,
    Outcome,
    Ping,
    Reset,
    SetState,
    Step,
    Welcome,
    fields_hash,
)  # fmt: skip
from .polling import Poller, drain
from .spec import EnvSpec
from .zmq_link import ZmqLink

log = logging.getLogger("rollbus.client")


class Client:
    """Listens on ``endpoint`` for one peer and asks it."""

    def __init__(
        self, endpoint: str, run: str = "", timeout_s: float = 30.0, heartbeat_s: float = 60.0,
        key: Union[str, Path, None] = None,
    ) -> None:  # fmt: skip
        """``key``: the secret file to listen with, of role hub; its folder says which peers may dial in."""
        self._gate = Gate(Path(key).parent, log.warning) if key is not None else None
        if self._gate is not None:
            self.link: ZmqLink = self._gate.bind(endpoint, "peer", load_key(Path(key or "")), run)
        else:
            self.link = ZmqLink.bind(endpoint, run)
        self.endpoint = self.link.endpoint
        self.timeout_s, self.heartbeat_s = timeout_s, heartbeat_s
        self.spec: Optional[EnvSpec] = None
        self.num_rows = 0
        #: Replies that came after their deadline.
        self.late = 0
        self._peer, self._count = b"", 0
        self._poller = Poller()
        self._poller.add(self.link)

    def wait_peer(self, timeout_s: Optional[float] = None) -> EnvSpec:
        """Block until a peer has dialled in; its spec."""
        deadline = time.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)
        self.spec = None
        while True:
            for envelope in drain(self.link):
                if isinstance(envelope.message, Hello):
                    return self._welcome(envelope)
            self._wait(deadline, "no environment has dialled in to %s" % self.endpoint)

    def reset(
        self, seeds: Sequence[int], rows: Optional[Sequence[int]] = None, options: Sequence[Any] = ()
    ) -> Dict[str, np.ndarray]:
        """Start episodes; observations [R, ...] per key."""
        message = Reset(self._rows(rows), np.asarray(seeds, np.int64), list(options))
        return _obs(self._outcome(message))

    def step(self, actions: Any, rows: Optional[Sequence[int]] = None, observe: bool = True) -> StepResult:
        """One step of ``rows`` (all by default) with ``actions`` [R, ...]."""
        outcome = self._outcome(Step(self._rows(rows), np.asarray(actions), observe))
        if outcome.reward is None or outcome.terminated is None or outcome.truncated is None:
            raise WireError("the outcome of a step lacks reward, terminated or truncated")
        if outcome.failure:
            raise FaultReceived("env", outcome.failure)
        return StepResult(outcome.obs, outcome.reward, outcome.terminated, outcome.truncated, outcome.success)

    def observe(self, rows: Optional[Sequence[int]] = None) -> Dict[str, np.ndarray]:
        """Observations of ``rows`` as they are."""
        return _obs(self._outcome(Observe(self._rows(rows))))

    def get_state(self, rows: Optional[Sequence[int]] = None) -> List[bytes]:
        """The state of each of ``rows``, where the environment can give it."""
        states = self._outcome(GetState(self._rows(rows))).states
        if states is None:
            raise WireError("the outcome of get_state lacks states")
        return states

    def set_state(
        self, states: Sequence[bytes], rows: Optional[Sequence[int]] = None
    ) -> Dict[str, np.ndarray]:
        """Put ``rows`` into ``states``; their observations."""
        return _obs(self._outcome(SetState(self._rows(rows), list(states))))

    def ping(self, timeout_s: Optional[float] = None) -> float:
        """Seconds for a round trip."""
        start = time.monotonic()
        self.ask(Ping(), timeout_s)
        return time.monotonic() - start

    def ask(self, message: Message, timeout_s: Optional[float] = None, id: int = 0) -> Message:
        """Send ``message`` and block for its answer.

        ``id`` repeats an earlier request. Raises `DeadlineExceeded`, `PeerLost` (the peer said
        goodbye, or dialled in anew and was welcomed: reset its rows) or `FaultReceived`.
        """
        if not self._peer:
            raise PeerLost("no environment has dialled in to %s; call wait_peer()" % self.endpoint)
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + timeout_s
        try:
            request = self.link.send(message, to=self._peer, id=id)
        except PeerLost:
            # A goodbye that has arrived says why.
            for envelope in drain(self.link):
                self._is_answer(envelope, -1)
            raise
        while True:
            for envelope in drain(self.link):
                if self._is_answer(envelope, request):
                    if isinstance(envelope.message, Fault):
                        raise FaultReceived(envelope.message.code, _text(envelope.message))
                    return envelope.message
            self._wait(deadline, "no answer to %s within %.1f s" % (message.kind, timeout_s))

    def close(self, reason: str = "") -> None:
        """Say goodbye to the peer and stop listening."""
        if self._peer:
            try:
                self.link.send(Goodbye(reason), to=self._peer)
            except PeerLost:
                pass
        self.link.close()
        if self._gate is not None:
            self._gate.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def _is_answer(self, envelope: Envelope, request: int) -> bool:
        message = envelope.message
        if isinstance(message, Hello):
            self._welcome(envelope)
            raise PeerLost("the environment was restarted and has dialled in anew; reset its rows")
        if envelope.peer != self._peer:
            return False
        if isinstance(message, Goodbye):
            self._peer = b""
            raise PeerLost("the environment left: %s" % (message.reason or "no reason given"))
        if envelope.re == request:
            return True
        self.late += 1
        return False

    def _welcome(self, envelope: Envelope) -> EnvSpec:
        hello = envelope.message
        assert isinstance(hello, Hello)
        self.spec = EnvSpec.from_data(hello.spec)
        self.num_rows, self._peer = hello.num_rows, envelope.peer
        self._count += 1
        welcome = Welcome(self._count, list(PROTOCOL), fields_hash(), self.heartbeat_s)
        self.link.send(welcome, to=envelope.peer, re=envelope.id)
        return self.spec

    def _rows(self, rows: Optional[Sequence[int]]) -> np.ndarray:
        return np.arange(self.num_rows, dtype=np.int32) if rows is None else np.asarray(rows, np.int32)

    def _outcome(self, message: Message) -> Outcome:
        answer = self.ask(message)
        if not isinstance(answer, Outcome):
            raise WireError("%s was answered by %s" % (message.kind, answer.kind))
        return answer

    def _wait(self, deadline: float, text: str) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded(text)
        self._poller.wait(left)


def _obs(outcome: Outcome) -> Dict[str, np.ndarray]:
    if outcome.obs is None:
        raise WireError("the outcome lacks observations")
    return outcome.obs


def _text(fault: Fault) -> str:
    return "%s (%s)" % (fault.text, fault.where) if fault.where else fault.text
