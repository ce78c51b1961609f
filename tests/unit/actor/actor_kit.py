"""The other sides of an actor's links, scripted with real messages, and an engine one can compute by hand.

The toy stream: the observation ``x`` of row r is [r, episode, step]; taking step s (from 0) is rewarded
with s + 1; row r's episodes last ``lengths[r]`` steps and are terminated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rollbus_actor.actor import Actor
from rollbus_actor.engines.base import Forward
from rollbus_core.columns import HEADER_BYTES, Layout
from rollbus_core.config.models import ActorConfig
from rollbus_core.feed import Feed, TableConfig
from rollbus_core.slabs import SlabFolder
from rollbus_core.version import Version
from rollbus_core.weights.digests import digest
from rollbus_policies.base import Act as PolicyAct
from rollbus_policies.base import Ask, PolicySpec
from rollbus_wire.link import Link, local_pair
from rollbus_wire.messages import (
    Act,
    Attach,
    Attached,
    Cancel,
    Commit,
    Committed,
    Detach,
    Done,
    Tick,
    Ticket,
    TicketRequest,
)
from rollbus_wire.polling import Poller, drain
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec

SPEC = EnvSpec("counter", {"x": ArraySpec("float32", (3,))}, ActionSpec("discrete", num=[100]))


class CounterEngine:
    """action = step mod 100, log_prob = -step, value = 10 episode + step; state counts decisions."""

    def __init__(self, state: bool = False, frame_stack: int = 1) -> None:
        self.version: Version | None = Version(0, 1)
        self.calls: list[dict[str, Any]] = []
        self.spec = PolicySpec(
            action=("int64", ()),
            extras={"log_prob": ("float32", ()), "value": ("float32", ())},
            state="hub" if state else "none",
            state_size=2 if state else 0,
            frame_stack=frame_stack,
        )

    def act(
        self, obs: Mapping[str, np.ndarray], state: np.ndarray | None, ask: Ask, seeds: np.ndarray
    ) -> Forward:
        x = obs["x"]
        self.calls.append({"rows": len(x), "x": x.copy(), "ask": ask, "seeds": seeds, "state": state})
        newest = x[:, -1] if self.spec.frame_stack > 1 else x
        action = newest[:, 2].astype(np.int64) % 100
        extras = {"log_prob": -newest[:, 2], "value": 10 * newest[:, 1] + newest[:, 2]}
        after = None if state is None else state + np.array([1, 0.5], np.float32)
        assert self.version is not None
        wanted = {name: extras[name] for name in ask.want}
        return Forward(PolicyAct(action, action, after, wanted), self.version)

    def set_weights(self, version: Version, tensors: Mapping[str, np.ndarray]) -> None:
        self.version = Version.of(version)


class ScriptedHub:
    """One slice of the toy stream. ``late(tick) -> rows`` are left out of that tick."""

    def __init__(
        self, lengths: list[int], name: str = "hub-0/0", *, record: bool = True, frame_stack: int = 1,
        late: Callable[[int], list[int]] = lambda _: [], repeat: int = 1,
    ) -> None:  # fmt: skip
        self.link, self.actor_end = local_pair(senders=("hub", "actor"))
        self.lengths, self.name, self.record, self.late = np.array(lengths), name, record, late
        self.frame_stack, self.repeat, self.paused = frame_stack, repeat, False
        n = self.num_rows = len(lengths)
        self.fence = self.tick = 0
        self.episode, self.step = np.zeros(n, np.int64), np.zeros(n, np.int32)
        self.carry: np.ndarray | None = None
        self.frames = np.repeat(self._x()[None], frame_stack, 0)
        self.waiting = np.zeros(n, bool)
        self.outcome: dict[str, np.ndarray] = {}
        self.acts: list[Act] = []
        self.detached: list[Detach] = []
        self.straddled = 0
        self._clear()

    def _x(self) -> np.ndarray:
        n = self.num_rows
        return np.stack([np.arange(n), self.episode, self.step], 1).astype(np.float32)

    def _clear(self) -> None:
        n, width = self.num_rows, self.repeat if self.acts else 1
        self.outcome = {
            "num_steps": np.zeros(n, np.int32), "reward": np.zeros((n, width), np.float32),
            "terminated": np.zeros(n, bool), "ended": np.zeros(n, bool),
            "final": np.zeros((n, 3), np.float32), "interrupted": np.zeros(n, bool),
        }  # fmt: skip

    def poll(self) -> None:
        for envelope in drain(self.link):
            message = envelope.message
            if isinstance(message, Attach):
                self.attach(envelope.id)
            elif isinstance(message, Detach):
                self.detached.append(message)
            elif isinstance(message, Act) and message.fence == self.fence:
                self.acts.append(message)
                self.apply(message)

    def attach(self, re: int) -> None:
        self.fence += 1
        self.straddled += int((self.outcome["num_steps"] > 0).sum())
        self._clear()
        history = {"x": self.frames[:-1].copy()} if self.frame_stack > 1 else None
        carry = None if self.carry is None else self.carry.copy()
        message = Attached(self.name, self.fence, self.num_rows, SPEC.to_data(), self.record, carry, history)
        self.link.send(message, re=re)
        self.send_tick(np.arange(self.num_rows))

    def apply(self, act: Act) -> None:
        assert act.tick == self.tick
        if len(self.outcome["reward"][0]) != self.repeat:
            self.outcome["reward"] = np.zeros((self.num_rows, self.repeat), np.float32)
        if act.carry is not None:
            if self.carry is None:
                self.carry = np.zeros((self.num_rows, act.carry.shape[1]), np.uint8)
            self.carry[act.rows] = act.carry
        for row in act.rows:
            self._advance(int(row))
        if not self.paused:
            late = self.late(self.tick)
            self.send_tick(np.array([r for r in range(self.num_rows) if r not in late]))

    def _advance(self, row: int) -> None:
        out = self.outcome
        out["num_steps"][row] = self.repeat
        out["reward"][row] = self.step[row] + 1
        self.step[row] += 1
        if self.step[row] >= self.lengths[row]:
            out["terminated"][row] = out["ended"][row] = True
            out["final"][row] = (row, self.episode[row], self.step[row])
            self.episode[row] += 1
            self.step[row] = 0
            if self.carry is not None:
                self.carry[row] = 0
            self.frames[:, row] = self._x()[row]
        else:
            self.frames[:-1, row] = self.frames[1:, row]
            self.frames[-1, row] = self._x()[row]

    def send_tick(self, rows: np.ndarray) -> None:
        self.tick += 1
        rows = rows.astype(np.int32)
        out = self.outcome
        final = np.flatnonzero(out["ended"][rows]).astype(np.int32)
        ended = rows[final]
        self.link.send(
            Tick(
                self.name, self.fence, self.tick, rows, {"x": self._x()[rows]}, self.episode[rows],
                self.step[rows], out["num_steps"][rows], out["reward"][rows], out["terminated"][rows],
                np.zeros(len(rows), bool), out["interrupted"][rows], final, {"x": out["final"][ended]},
                out["final"][ended, 2] * 1.5, out["final"][ended, 2].astype(np.int32),
                np.ones(len(ended), np.int8), np.full(len(ended), -1, np.int8),
            )
        )  # fmt: skip
        kept = {key: value.copy() for key, value in out.items()}
        self._clear()
        absent = np.setdiff1d(np.arange(self.num_rows), rows)
        for key, value in kept.items():
            if self.outcome[key].shape == value.shape:
                self.outcome[key][absent] = value[absent]


class ScriptedStore:
    """Grants tickets into real slabs, checks digests, and keeps a copy of every chunk."""

    def __init__(self, folder: Path) -> None:
        self.link, self.actor_end = local_pair(senders=("store", "actor"))
        self.slabs = SlabFolder(folder)
        self.granting, self.mode, self.limit, self.min_version = True, "sample", 1000, [0, 0]
        self.reason = ""
        self.waiting: list[Any] = []
        self.open: dict[int, tuple[Layout, Any]] = {}
        self.chunks: list[dict[str, np.ndarray]] = []
        self.commits: list[Commit] = []
        self.cancelled: list[int] = []
        self.requests: list[TicketRequest] = []
        self._next = 0
        self.free: dict[str, list[int]] = {}

    def poll(self) -> None:
        for envelope in drain(self.link):
            message = envelope.message
            if isinstance(message, TicketRequest):
                self.requests.append(message)
                self.waiting.append(envelope)
            elif isinstance(message, Commit):
                self._commit(envelope, message)
            elif isinstance(message, Cancel):
                self.cancelled += message.tickets
                self.link.send(Done(), re=envelope.id)
        while self.granting and self.waiting:
            self._grant(self.waiting.pop(0))

    def _grant(self, envelope: Any) -> None:
        layout = Layout.from_data(envelope.message.layout)
        self._next += 1
        cells = self.free.setdefault(layout.key, [])
        if cells:
            slab = cells.pop()
        else:
            slab = 100 + self._next
            # Dirt that a writer must not leave in a chunk.
            self.slabs.create(slab, layout.cell_bytes)[:] = b"\xa5" * layout.cell_bytes
        cell = self.slabs.open(slab, layout.cell_bytes)
        self.open[self._next] = (layout, (slab, cell))
        self.link.send(
            Ticket(
                self._next, slab, layout.cell_bytes, 0, self._next,
                min(self.limit, envelope.message.num_decisions), list(self.min_version), self.mode,
            ),
            re=envelope.id,
        )  # fmt: skip

    def _commit(self, envelope: Any, commit: Commit) -> None:
        layout, (slab, cell) = self.open.pop(commit.ticket)
        if self.reason:
            self.link.send(Committed(commit.ticket, -1, self.reason), re=envelope.id)
            return
        assert digest(memoryview(cell)[HEADER_BYTES:], commit.digest_kind) == commit.digest
        self.commits.append(commit)
        self.chunks.append({name: view.copy() for name, view in layout.views(cell).items()})
        self.free[layout.key].append(slab)
        self.link.send(Committed(commit.ticket, len(self.chunks)), re=envelope.id)


def feed(num_decisions: int, extras: tuple[str, ...] = ("log_prob",)) -> Feed:
    return Feed(table=TableConfig(batch_steps=1024), num_decisions=num_decisions, extras=extras)


class Rig:
    """An actor with scripted hubs and a scripted store, in one loop."""

    def __init__(
        self, folder: Path, hubs: list[ScriptedHub], *, engine: Any = None, feed: Feed | None = None,
        config: ActorConfig | None = None, registry: Link | None = None, **options: Any,
    ) -> None:  # fmt: skip
        self.hubs, self.store = hubs, ScriptedStore(folder)
        self.engine = engine or CounterEngine()
        ends = {hub.name: hub.actor_end for hub in hubs}
        self.actor = Actor(
            "actor-0", config or ActorConfig(), engine=self.engine,
            policy_spec=options.pop("policy_spec", None) or self.engine.spec,
            feed=feed, connect=ends.__getitem__, registry=registry,
            store=self.store.actor_end if feed is not None else None,
            slabs=options.pop("slabs", self.store.slabs), **options,
        )  # fmt: skip
        self.actor.start(Poller())
        if registry is None:
            for hub in hubs:
                self.actor.take(hub.name, hub.name)

    def run(self, until: Callable[[], Any], turns: int = 3000) -> None:
        for _ in range(turns):
            if until():
                return
            self.actor.poll()
            self.store.poll()
            for hub in self.hubs:
                hub.poll()
        raise AssertionError(f"not reached in {turns} turns; actor says {self.actor.numbers()}")

    def idle(self, turns: int = 20) -> None:
        """Let everybody go on as far as they can."""
        for _ in range(turns):
            self.actor.poll()
            self.store.poll()
            for hub in self.hubs:
                hub.poll()


def decisions(chunks: list[dict[str, np.ndarray]], row: int) -> list[tuple[int, int]]:
    """(episode, step) of everything recorded of a row, in order, each checked against the toy stream."""
    found = []
    for chunk in chunks:
        history = len(chunk["obs/x"]) - len(chunk["action"]) - 1
        obs = chunk["obs/x"][history:, row]
        for t in range(chunk["lengths"][row]):
            episode, step = int(chunk["episode"][t, row]), int(chunk["step"][t, row])
            found.append((episode, step))
            assert obs[t].tolist() == [row, episode, step]
            assert chunk["action"][t, row] == step % 100
            assert chunk["reward"][t, row, 0] == step + 1
            slot = chunk["final_slot"][t, row]
            assert (slot >= 0) == bool(chunk["terminated"][t, row])
            if slot >= 0:
                assert chunk["final_obs/x"][slot].tolist() == [row, episode, step + 1]
                assert chunk["final_length"][slot] == step + 1
                assert obs[t + 1].tolist() == [row, episode + 1, 0]
            else:
                assert obs[t + 1].tolist() == [row, episode, step + 1]
        if chunk["lengths"][row]:
            assert obs[chunk["lengths"][row]][2] == chunk["last_step"][row]
    return found


def stream_of(length: int, num: int) -> list[tuple[int, int]]:
    """The first ``num`` (episode, step) of a row whose episodes last ``length`` steps."""
    return [(n // length, n % length) for n in range(num)]
