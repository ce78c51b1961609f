"""The registry plane: answers messages, watches members, sends assignments."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from typing import Any

import structlog

from rollbus_broker.registry.assignments import Assignments, Offer
from rollbus_broker.registry.boot import BootFile
from rollbus_broker.registry.membership import Entry, Membership
from rollbus_broker.registry.relays import RELAYED, LastOnes
from rollbus_core.config.models import BrokerConfig
from rollbus_core.lines import is_no_room
from rollbus_core.paths import RunPaths
from rollbus_wire import shm
from rollbus_wire.errors import PeerLost, WireError, short
from rollbus_wire.gate import GuardedLink
from rollbus_wire.limits import MAX_KEY, MAX_NAME, MAX_PEERS
from rollbus_wire.link import Envelope, Link
from rollbus_wire.messages import (
    PROTOCOL,
    Command,
    Done,
    Fault,
    Gone,
    Heartbeat,
    Leave,
    ListMembers,
    Members,
    Message,
    Notice,
    Ping,
    Pong,
    Register,
    Registered,
    Released,
    SlicesChanged,
    fields_hash,
)
from rollbus_wire.polling import drain

_NAME = re.compile(r"[\w./-]{1,%d}" % MAX_KEY, re.ASCII)


class Registry:
    """Members and assignments of one run.

    ``on_lost(member, dead)``: its tickets return; ``dead`` says that its process is known
    to have ended. ``tables`` gives the store's rows for `Members`.
    """

    def __init__(
        self,
        link: Link,
        paths: RunPaths,
        config: BrokerConfig,
        boot: BootFile,
        now: float,
        *,
        on_lost: Callable[[Entry, bool], None] = lambda member, dead: None,
        tables: Callable[[], list[dict[str, Any]]] = list,
        notice: Callable[[], str] = str,
        log: Any = None,
    ) -> None:
        self.link, self.paths, self.config, self._boot = link, paths, config, boot
        self.membership = Membership(config.lost_after_s, boot.names)
        self.assignments = Assignments(boot.boot, config.heartbeat_s)
        self.last = LastOnes()
        #: Role -> relayed messages dropped because their member did not read.
        self.unsent: dict[str, int] = {}
        self._behind: set[str] = set()
        #: Somebody asked all services to stop.
        self.stop_requested = False
        self._on_lost, self._tables, self._notice = on_lost, tables, notice
        self._log = log or structlog.get_logger("broker")
        # The first boot of a run has no earlier holders to wait for.
        self._assign_from = now + (config.lost_after_s if boot.boot > 1 else 0.0)
        self._polled = now
        self._handlers: dict[type[Message], Callable[[Envelope, float], None]] = {
            Register: self._register, Heartbeat: self._heartbeat, Released: self._released,
            SlicesChanged: self._slices_changed, Gone: self._gone, Leave: self._leave,
            Command: self._command, ListMembers: self._list, Ping: self._ping,
        }  # fmt: skip

    @property
    def boot(self) -> int:
        return self._boot.boot

    def poll(self, now: float) -> bool:
        """Handle what arrived, expire, assign; whether anything was done."""
        if now - self._polled > self.config.lost_after_s:
            self._log.warning("registry paused", seconds=round(now - self._polled, 1))
            self.membership.grant_lease(now)
        self._polled = now
        busy = False
        for envelope in drain(self.link):
            busy = True
            self._handle(envelope, now)
        for entry in self.membership.expire(now):
            if isinstance(self.link, GuardedLink) and (key := self.link.revoked(entry.producer)):
                entry.failure = f"its key {key} is revoked; give it another (rollbus keys create)"
            self._drop(entry, dead=False)
        return self._plan(now) or busy

    def members(self, now: float) -> list[dict[str, Any]]:
        """All members as maps, lost and failed ones too."""
        entries = sorted(self.membership.members.values(), key=lambda m: (m.role, m.name))
        return [entry.to_data(now) for entry in entries]

    def _handle(self, envelope: Envelope, now: float) -> None:
        message = envelope.message
        handler = self._handlers.get(type(message))
        if handler is not None:
            handler(envelope, now)
        elif type(message) in RELAYED:
            try:
                self.last.keep(message)
            except WireError as error:
                self._reply(envelope, Fault(error.code, f"{message.kind}: {error}"))
                return
            for role in RELAYED[type(message)]:
                for member in self.membership.living(role):
                    if not self._send(message, member.peer):
                        self.unsent[member.role] = self.unsent.get(member.role, 0) + 1
                        self._behind.add(member.producer)
        elif not isinstance(message, (Fault, Done, Pong)):
            self._reply(envelope, Fault("unexpected", f"{message.kind} is not for the registry"))

    def _register(self, envelope: Envelope, now: float) -> None:
        message = envelope.message
        assert isinstance(message, Register)
        if message.protocol[:1] != [PROTOCOL[0]]:
            spoken = message.protocol[:2]
            text = f"{message.role}/{message.name} speaks protocol {spoken}, this run {PROTOCOL}"
            self._reply(envelope, Fault("version", text + "; install the same major version"))
            return
        if problem := self._unfit(message):
            self._reply(envelope, Fault("wire", f"{message.role}/{message.name}: {problem}"))
            return
        known = self.membership.names.get(f"{message.role}/{message.name}")
        found = self.membership.register(message, envelope.peer, now)
        if found is None:
            text = f"a newer process is {message.role}/{message.name}; end this one (pid {message.pid})"
            self._reply(envelope, Fault("superseded", text))
            return
        entry, replaced = found
        if replaced is not None:
            self._drop(replaced, dead=False)
        if (self.membership.names[entry.key] != known or self._boot.unsaved) and not self._saved():
            return  # it registers again
        if message.fields_hash not in ("", fields_hash()):
            self._log.info("another minor version", member=entry.key, fields_hash=message.fields_hash)
        self._log.info("registered", member=entry.key, pid=entry.pid, incarnation=entry.incarnation)
        answer = Registered(
            self.boot, entry.incarnation, self.config.heartbeat_s, self.config.lost_after_s,
            same_memory(message, self.paths), self.last.notices(),
        )  # fmt: skip
        self._reply(envelope, answer)
        for kept in self.last.messages(entry.role):
            if not isinstance(kept, Notice):
                self._send(kept, entry.peer)

    def _saved(self) -> bool:
        """Names and incarnations are on disk, before anybody acts on them; False: the disk is full."""
        try:
            self._boot.save()
        except OSError as error:
            if not is_no_room(error):
                raise
            self._boot.unsaved = True
            return False
        self._boot.unsaved = False
        return True

    def _unfit(self, message: Register) -> str:
        """What is wrong with a registration, or ""."""
        for label, value in (("role", message.role), ("name", message.name)):
            if not _NAME.fullmatch(value):
                return f"the {label} must be 1 to {MAX_KEY} letters, digits, '.', '_', '-', '/'"
        if not message.producer or len(message.producer) > MAX_KEY:
            return f"the producer id must have 1 to {MAX_KEY} characters"
        if (bad := _bad_slices(message.slices)) is not None:
            return f"slice {short(bad)}"
        names = self.membership.names
        if len(names) >= MAX_PEERS and f"{message.role}/{message.name}" not in names:
            return f"{MAX_PEERS} names are known in this run already"
        return ""

    def _heartbeat(self, envelope: Envelope, now: float) -> None:
        message = envelope.message
        assert isinstance(message, Heartbeat)
        entry = self.membership.heartbeat(envelope.sender, message, envelope.peer, now)
        if entry is None:
            self._reply(envelope, Fault("rejoin", "not a member (any more): register again"))
            return
        if entry.producer in self._behind:
            # It reads again: the newest makes up for what it missed, once there is room for it.
            if all(self._send(kept, entry.peer) for kept in self.last.messages(entry.role)):
                self._behind.discard(entry.producer)
        if entry.role == "actor":
            held = message.stats.get("held")
            if isinstance(held, dict):
                self.assignments.listed(entry.producer, {n: e for n, e in held.items() if isinstance(e, str)})

    def _released(self, envelope: Envelope, now: float) -> None:
        message = envelope.message
        assert isinstance(message, Released)
        self.assignments.released(envelope.sender, message.slice, message.assignment, now)

    def _slices_changed(self, envelope: Envelope, now: float) -> None:
        message = envelope.message
        assert isinstance(message, SlicesChanged)
        entry = self.membership.members.get(envelope.sender)
        if (bad := _bad_slices(message.slices)) is not None:
            self._reply(envelope, Fault("wire", f"slices_changed: slice {short(bad)}"))
        elif entry is not None:
            entry.slices = list(message.slices)

    def _gone(self, envelope: Envelope, now: float) -> None:
        message = envelope.message
        assert isinstance(message, Gone)
        entry = self.membership.gone(message.role, message.name, message.pid, message.reason)
        if entry is not None:
            self._drop(entry, dead=True)

    def _leave(self, envelope: Envelope, now: float) -> None:
        entry = self.membership.leave(envelope.sender)
        if entry is not None:
            self._drop(entry, dead=True)

    def _drop(self, entry: Entry, *, dead: bool) -> None:
        self._log.info("member ended", member=entry.key, state=entry.state, why=entry.failure)
        self.assignments.lost(entry.producer)
        self._behind.discard(entry.producer)
        self._on_lost(entry, dead)

    def _command(self, envelope: Envelope, now: float) -> None:
        message = envelope.message
        assert isinstance(message, Command)
        if message.name == "scale":
            targets = self.membership.living("launcher")
            if not targets:
                text = "nobody can scale this run: no launcher is a member; start the process yourself"
                self._reply(envelope, Fault("no-launcher", text))
                return
        elif message.name in ("stop", "drain"):
            targets = self.membership.living()
            self.stop_requested = self.stop_requested or message.name == "stop"
        else:
            text = f"unknown command {short(message.name)}; one of: scale, drain, stop"
            self._reply(envelope, Fault("command", text))
            return
        for member in targets:
            self._send(message, member.peer)
        self._reply(envelope, Done({"told": [member.name for member in targets]}))

    def _list(self, envelope: Envelope, now: float) -> None:
        message = envelope.message
        assert isinstance(message, ListMembers)
        members = [self._own_row(), *self.members(now)]
        same = bool(message.memory) and shm.same_memory(message.memory, self.paths.runtime)
        self._reply(envelope, Members(members, self.boot, self._tables(), same))

    def _own_row(self) -> dict[str, Any]:
        """The broker is no member of its own registry, but people look for it."""
        return {
            "role": "broker", "name": "broker-0", "pid": os.getpid(), "host": socket.gethostname(),
            "state": "ready", "stage": "serve", "since_s": 0.0, "silent_s": 0.0, "deadline_s": 0.0,
            "failure": self._without_room() or self._notice(), "incarnation": self.boot, "slices": [],
            "stats": {},
        }  # fmt: skip

    def _without_room(self) -> str:
        """What the tables have no room for; "": they have."""
        states = {str(table["state"]) for table in self._tables()}
        if "disk" in states or self._boot.unsaved:
            return f"the disk of {self.paths.root} is full: nothing is taken or given until there is room"
        if "memory" in states:
            return f"shared memory in {self.paths.runtime} is full: chunks wait for room"
        return ""

    def _ping(self, envelope: Envelope, now: float) -> None:
        self._reply(envelope, Pong())

    def _plan(self, now: float) -> bool:
        offers: dict[str, Offer] = {}
        actors = self.membership.living("actor")
        of_process = {(a.host, a.pid): a.producer for a in actors}
        for hub in self.membership.living("hub"):
            if hub.state == "ready":
                near = of_process.get((hub.host, hub.pid), "")
                for item in hub.slices:
                    offer = Offer(hub.producer, item["endpoint"], near)
                    offers.setdefault(item["slice"], offer)
        orders = self.assignments.plan(
            offers,
            [a.producer for a in actors if a.state == "ready"],
            now,
            leaving=[a.producer for a in actors if a.state == "draining"],
            assign=now >= self._assign_from,
        )
        for order in orders:
            member = self.membership.members.get(order.actor)
            if member is not None:
                self._send(order.message, member.peer)
        return bool(orders)

    def _reply(self, envelope: Envelope, message: Message) -> None:
        self._send(message, envelope.peer, envelope.id)

    def _send(self, message: Message, peer: bytes, re: int = 0) -> bool:
        """False if it is not connected or does not read; what matters is repeated or kept."""
        try:
            self.link.send(message, to=peer, re=re)
        except PeerLost:
            return False
        return True


def _bad_slices(slices: list[Any]) -> Any:
    """The first entry whose "slice" and "endpoint" are not names, or None."""
    for item in slices:
        names = (item.get("slice"), item.get("endpoint")) if isinstance(item, dict) else (None,)
        if not all(isinstance(name, str) and 0 < len(name) <= MAX_NAME for name in names):
            return item if item is not None else "None"
    return None


def same_memory(message: Register, paths: RunPaths) -> bool:
    """Whether the member sees this run's runtime folder.

    It has written ``nonce`` there (`rollbus_wire.shm`); without one, the same host name has to do.
    """
    if not message.nonce:
        return message.host == socket.gethostname()
    return shm.same_memory(message.nonce, paths.runtime)
