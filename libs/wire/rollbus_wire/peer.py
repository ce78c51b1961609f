"""The environment's side of the peer plane: answer a hub, over any link, and dial in to one.

`Peer` is the state machine of docs/protocol.md, "Peer plane". `run_env` is the loop a simulator
process or a robot runs.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any, Callable, Dict, Optional, Union

import numpy as np

from .actions import ActionBounds
from .env import Env, as_env
from .errors import (
    AccessDenied,
    FaultReceived,
    PeerLost,
    RollbusError,
    SpecError,
    VersionMismatch,
    WireError,
    short,
)
from .freshness import Freshness
from .keys import Key
from .keys import load as load_key
from .link import Envelope, Link
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
    Pong,
    Reset,
    SetState,
    Step,
    Welcome,
    fields_hash,
)  # fmt: skip
from .places import place_of_error, traceback_of
from .polling import Poller, drain
from .roles import check_dialler
from .stopping import stop_signals
from .telling import Told
from .zmq_link import ZmqLink

log = logging.getLogger("rollbus.peer")

#: Replies that are kept for repeated requests.
KEEP_REPLIES = 16
#: A hello that nobody answers is said again after this long.
HELLO_S = 5.0
#: What a hub may promise as its heartbeat.
MIN_HEARTBEAT_S, MAX_HEARTBEAT_S = 0.1, 120.0
#: A frame of a request may be this much larger than the actions of all rows; more ends the connection.
REQUEST_BYTES = 16 << 20
_POLL_S = 0.2
_MAX_KNOWN_ROWS = 256


class Peer:
    """Answers the requests of one hub on ``link``. Not thread-safe; `poll` never waits."""

    def __init__(self, env: Env, link: Link, name: str = "", *, trusting: bool = False) -> None:
        """``trusting``: the hub is in this process and has checked the actions already."""
        self.env, self.link, self.name, self._trusting = env, link, name, trusting
        self.welcome: Optional[Welcome] = None
        #: The hub's refusal, if it did not take the peer.
        self.refusal: Optional[Fault] = None
        #: The hub does not know this peer (it was restarted): dial in anew.
        self.forgotten = False
        self.goodbye: Optional[Goodbye] = None
        #: Monotonic time of the last sign of the hub.
        self.heard = time.monotonic()
        self._bounds, self._freshness = ActionBounds(env.spec.action), Freshness(env)
        self._obs = {key: (np.dtype(spec.dtype), spec.shape) for key, spec in env.spec.observation.items()}
        self._replies: OrderedDict[int, Message] = OrderedDict()
        self._hub, self._dropped_id = "", 0
        self._known_rows: Dict[bytes, np.ndarray] = {}
        self._answers: Dict[type, Callable[[Any], Message]] = {
            Reset: self._reset, Step: self._step, Observe: self._observe,
            GetState: self._get_state, SetState: self._set_state, Ping: lambda _: Pong(),
        }  # fmt: skip

    def dial(self) -> None:
        """Say hello."""
        self.link.send(
            Hello(
                protocol=list(PROTOCOL),
                spec=self.env.spec.to_data(),
                num_rows=self.env.num_rows,
                name=self.name,
                fields_hash=fields_hash(),
                row_tasks=getattr(self.env, "row_tasks", None),
            )  # fmt: skip
        )

    def poll(self) -> bool:
        """Answer what has arrived; whether anything had."""
        busy = False
        for envelope in drain(self.link):
            busy = True
            self._handle(envelope)
            # A long step is no silence of the hub.
            self.heard = time.monotonic()
        return busy

    def answer(self, request: Message) -> Message:
        """The outcome of ``request``, or the `Fault` that came of it."""
        try:
            return self._answers[type(request)](request)
        except Exception as error:  # noqa: BLE001 - whatever an environment raises is its outcome
            return self._failure(request, error)

    @property
    def closed(self) -> bool:
        """Whether the session is over."""
        return self.goodbye is not None or self.refusal is not None or self.forgotten

    def _handle(self, envelope: Envelope) -> None:
        message = envelope.message
        if type(message) in self._answers:
            self._reply(envelope)
        elif isinstance(message, Welcome):
            self.welcome = message
            self.link.run = self.link.run or envelope.run
        elif isinstance(message, Goodbye):
            self.goodbye = message
        elif isinstance(message, Fault):
            self._fault(message)

    def _fault(self, fault: Fault) -> None:
        if fault.code == "unknown-peer":
            self.forgotten = True
        elif self.welcome is None:
            self.refusal = fault
        else:
            log.warning("the hub reports %.40s: %.1000s", fault.code, fault.text)

    def _reply(self, envelope: Envelope) -> None:
        if envelope.sender != self._hub:
            self._hub, self._dropped_id = envelope.sender, 0
            self._replies.clear()
        reply = self._replies.get(envelope.id)
        if reply is None:
            if envelope.id <= self._dropped_id:
                reply = Fault("wire", "request %d is too old to be repeated" % envelope.id)
            else:
                reply = self.answer(envelope.message)
                self._replies[envelope.id] = reply
                while len(self._replies) > KEEP_REPLIES:
                    dropped, _ = self._replies.popitem(last=False)
                    self._dropped_id = max(self._dropped_id, dropped)
        try:
            self.link.send(reply, to=envelope.peer, re=envelope.id)
        except WireError as error:
            self._replies[envelope.id] = fault = Fault(error.code, str(error), self.env.spec.name)
            self.link.send(fault, to=envelope.peer, re=envelope.id)

    def _failure(self, request: Message, error: Exception) -> Fault:
        where = "%s %s" % (self.env.spec.name, request.kind)
        rows = getattr(request, "rows", None)
        if isinstance(rows, np.ndarray):
            where += ", rows %s" % rows.ravel()[:64].tolist()
        if isinstance(error, RollbusError):
            code, text = error.code, str(error)
        else:
            place = place_of_error(error)
            code, text = "env", "%s: %s%s" % (type(error).__name__, error, place and ", in " + place)
        log.warning("%s: %s", where, text)
        return Fault(code, text, where, traceback_of(error))

    # --- the requests

    def _reset(self, message: Reset) -> Message:
        rows, seeds = self._rows(message.rows), message.seeds
        if seeds.shape != (len(rows),) or seeds.dtype.kind not in "iu":
            raise WireError(
                "%d seeds for %d rows (%s %s)" % (seeds.size, len(rows), seeds.dtype, list(seeds.shape))
            )
        if message.options and len(message.options) != len(rows):
            raise WireError("%d options for %d rows" % (len(message.options), len(rows)))
        if not all(isinstance(each, (dict, type(None))) for each in message.options):
            raise WireError("options of a reset are one map per row")
        obs = self.env.reset(rows, seeds, message.options)
        return Outcome(rows=rows, obs=self._checked(obs, rows))

    def _step(self, message: Step) -> Message:
        rows = self._rows(message.rows)
        actions = message.actions if self._trusting else self._bounds(message.actions)
        if len(actions) != len(rows):
            raise WireError("%d actions for %d rows" % (len(actions), len(rows)))
        result = self.env.step(rows, actions, message.observe)
        obs, reward, terminated, truncated, success = result[:5]
        count = len(rows)
        outcome = Outcome(
            rows=rows,
            obs=self._checked(obs, rows) if message.observe else None,
            reward=_column("reward", reward, np.float32, count),
            terminated=_column("terminated", terminated, np.bool_, count),
            truncated=_column("truncated", truncated, np.bool_, count),
            success=_column("success", success, np.bool_, count) if self.env.spec.has_success else None,
        )
        failed = getattr(result, "failed", None)
        if failed:
            error = next(iter(failed.values()))
            outcome.failure, outcome.traceback = str(error), traceback_of(error)
            log.warning("%s: %s", self.env.spec.name, error)
        return outcome

    def _observe(self, message: Observe) -> Message:
        rows = self._rows(message.rows)
        return Outcome(rows=rows, obs=self._checked(self.env.observe(rows), rows))

    def _get_state(self, message: GetState) -> Message:
        rows = self._rows(message.rows)
        return Outcome(rows=rows, states=list(self.env.get_state(rows)))

    def _set_state(self, message: SetState) -> Message:
        rows = self._rows(message.rows)
        if len(message.states) != len(rows) or not all(isinstance(s, bytes) for s in message.states):
            raise WireError("%d states for %d rows; each is bytes" % (len(message.states), len(rows)))
        obs = self.env.set_state(rows, message.states)
        return Outcome(rows=rows, obs=self._checked(obs, rows))

    def _rows(self, rows: np.ndarray) -> np.ndarray:
        """``rows`` as int32 if they are distinct places of this peer."""
        key = rows.tobytes()
        known = self._known_rows.get(key)
        if known is not None and known.dtype == rows.dtype and known.shape == rows.shape:
            return known
        good = rows.ndim == 1 and rows.size > 0 and rows.dtype.kind in "iu"
        if good:
            good = rows.min() >= 0 and rows.max() < self.env.num_rows
            good = bool(good) and len(np.unique(rows)) == len(rows)
        if not good:
            raise WireError(
                "rows %s (%s %s) are not distinct places of the %d rows here"
                % (short(rows), rows.dtype, list(rows.shape), self.env.num_rows)
            )
        if rows.dtype != np.int32:
            return rows.astype(np.int32)
        if len(self._known_rows) >= _MAX_KNOWN_ROWS:
            self._known_rows.clear()
        # A copy: on a local link the hub may use its array again.
        known = self._known_rows[key] = np.array(rows)
        known.flags.writeable = False
        return known

    def _checked(self, obs: Any, rows: np.ndarray) -> Dict[str, np.ndarray]:
        """``obs`` if it is what the spec states and of now."""
        count = len(rows)
        if not isinstance(obs, dict) or obs.keys() != self._obs.keys():
            found = sorted(obs) if isinstance(obs, dict) else type(obs).__name__
            raise SpecError("observation keys are %s, the spec states %s" % (found, sorted(self._obs)))
        for key, (dtype, shape) in self._obs.items():
            array = obs[key]
            if array.dtype != dtype or array.shape != (count,) + shape:
                raise SpecError(
                    "observation %r is %s %s, the spec states %s %s"
                    % (key, array.dtype, list(array.shape), dtype, [count] + list(shape))
                )
        if self._freshness.needed:
            self._freshness.check(rows, obs)
        return obs


def _column(name: str, values: Any, dtype: Any, count: int) -> np.ndarray:
    """``values`` as one array [R] of ``dtype``."""
    if type(values) is np.ndarray and values.dtype == dtype and values.shape == (count,):
        return values
    array = np.asarray(values)
    if array.shape != (count,) or array.dtype.kind not in "biuf":
        raise SpecError(
            "%s is %s %s, the contract says %s [%d]"
            % (name, array.dtype, list(array.shape), np.dtype(dtype), count)
        )
    return array if array.dtype == dtype else array.astype(dtype)


def run_env(
    env_or_factory: Any,
    endpoint: str,
    num_rows: int = 1,
    name: str = "",
    run: str = "",
    stop: Optional[Callable[[], bool]] = None,
    key: Union[str, Path, None] = None,
) -> None:
    """Serve environments to the hub at ``endpoint`` until it says goodbye or ``stop()`` is true.

    ``env_or_factory``: a batched `Env`, one Gymnasium-style environment, or a function that makes
    one, called ``num_rows`` times. Waits for a hub that is not there yet and dials in again when one
    is restarted; it says so in the log "rollbus.peer" at INFO, on stderr where no logging is set up.
    SIGTERM and Ctrl-C end it after the running step; the environment is closed.
    ``key``: the secret file of this peer, which every address beyond loopback needs.

    Raises `VersionMismatch` if the hub speaks another protocol, `FaultReceived` if it refuses, `AccessDenied`
    if it refuses the key. One that is revoked while it is used is refused when the peer dials in anew, after
    three heartbeats in which nothing was heard of the hub.
    """
    identity = load_key(key) if key is not None else None
    if identity is not None:
        check_dialler("peer", identity.name, identity.role)
    env = as_env(env_or_factory, num_rows)
    try:
        with stop_signals() as signalled:
            told, session_ended = Told(endpoint, "%d rows of %s" % (env.num_rows, env.spec.name)), False
            while not session_ended:
                ends = lambda: signalled() or (stop is not None and stop())  # noqa: E731
                session_ended = _session(env, endpoint, name, run, ends, identity, told)
    except KeyboardInterrupt:
        log.info("interrupted")
    finally:
        env.close()


def _session(
    env: Env, endpoint: str, name: str, run: str, stop: Callable[[], bool], key: Optional[Key], told: Told
) -> bool:  # fmt: skip
    """One connection to a hub; whether it is the last one."""
    link = ZmqLink.connect(endpoint, run, key=key, max_frame_bytes=_most_bytes(env))
    peer = Peer(env, link, name)
    poller = Poller()
    poller.add(link)
    reason = "the environment stops"
    try:
        peer.dial()
        while not stop():
            busy = peer.poll()
            _raise_if_refused(peer)
            told.turn(peer.welcome is not None)
            if peer.goodbye is not None:
                told.gone("it says goodbye: %s" % (peer.goodbye.reason or "no reason given"))
                return not peer.goodbye.again
            patience_s = _patience_s(peer.welcome)
            if peer.forgotten or time.monotonic() - peer.heard > patience_s:
                reason = "dials in again"
                told.gone(
                    "it knows this peer no more" if peer.forgotten else "silent for %.1f s" % patience_s
                )
                if peer.forgotten:
                    time.sleep(_POLL_S)
                return False
            if not busy:
                poller.wait(_POLL_S)
        return True
    except PeerLost as error:
        told.gone(str(error))
        return False
    finally:
        _leave(link, reason)


def _most_bytes(env: Env) -> int:
    """The largest frame that a hub has reason to send."""
    return REQUEST_BYTES + 8 * env.num_rows * int(np.prod(env.spec.action.shape, dtype=np.int64))


def _patience_s(welcome: Optional[Welcome]) -> float:
    """How long a hub may be silent; what it says of itself counts within bounds."""
    if welcome is None:
        return HELLO_S
    promised = welcome.heartbeat_s
    return 3 * (min(max(promised, MIN_HEARTBEAT_S), MAX_HEARTBEAT_S) if promised == promised else HELLO_S)


def _leave(link: ZmqLink, reason: str) -> None:
    try:
        link.send(Goodbye(reason))
    except (PeerLost, AccessDenied):  # what ended the session has been said
        pass
    link.close()


def _raise_if_refused(peer: Peer) -> None:
    if peer.welcome is not None:
        return
    rejected = peer.link.rejected
    if "version" in rejected:
        raise VersionMismatch("the hub refuses this peer: " + peer.link.rejects.last)
    if "foreign-run" in rejected:
        raise FaultReceived("foreign-run", peer.link.rejects.last)
    if peer.refusal is not None:
        text = "the hub refuses this peer: " + peer.refusal.text
        if peer.refusal.code == "version":
            raise VersionMismatch(text)
        raise FaultReceived(peer.refusal.code, text)
