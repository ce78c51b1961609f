"""Who is there. Pure: time is an argument, and what must be kept is in ``names``.

Times are seconds of one monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rollbus_wire.limits import MAX_NAME, MAX_PEERS
from rollbus_wire.messages import Heartbeat, Register

#: A member that has registered but not yet sent a heartbeat may be loading for this long.
START_DEADLINE_S = 60.0
#: No stage lasts longer.
MAX_DEADLINE_S = 86400.0
#: The state that `rollbus_core.service` reports -> the state of a member.
STATES = {
    "start": "starting", "ready": "ready", "run": "ready", "drain": "draining", "stopped": "draining",
}  # fmt: skip
#: States in which a process is believed to turn its loop.
ALIVE = ("starting", "ready", "draining")


def plain_stats(stats: dict[str, Any]) -> dict[str, Any]:
    """What of ``stats`` people and /metrics can read: numbers, names, and lists and maps of these."""
    return {key: value for key, value in stats.items() if _is_plain(value)}


def _is_plain(value: Any, depth: int = 3) -> bool:
    if isinstance(value, str):
        return len(value) <= MAX_NAME
    if isinstance(value, dict | list | tuple):
        inner = value.values() if isinstance(value, dict) else value
        return depth > 0 and all(_is_plain(item, depth - 1) for item in inner)
    return value is None or isinstance(value, int | float)


@dataclass
class Entry:
    """One member, alive or remembered."""

    role: str
    name: str
    producer: str
    pid: int
    host: str
    #: Address on the registry link.
    peer: bytes
    incarnation: int
    heard: float
    slices: list[dict[str, Any]] = field(default_factory=list)
    #: starting | ready | draining | lost | failed
    state: str = "starting"
    stage: str = "start"
    stage_began: float = 0.0
    deadline_s: float = START_DEADLINE_S
    failure: str = ""
    stats: dict[str, Any] = field(default_factory=dict)
    #: Heartbeats so far.
    beats: int = 0

    @property
    def key(self) -> str:
        return f"{self.role}/{self.name}"

    @property
    def alive(self) -> bool:
        return self.state in ALIVE

    def to_data(self, now: float) -> dict[str, Any]:
        """For `Members`."""
        return {
            "role": self.role, "name": self.name, "pid": self.pid, "host": self.host,
            "state": self.state, "stage": self.stage, "since_s": now - self.stage_began,
            "silent_s": now - self.heard, "deadline_s": self.deadline_s, "failure": self.failure,
            "incarnation": self.incarnation, "slices": self.slices, "stats": self.stats,
        }  # fmt: skip


class Membership:
    """Members by producer id; at most one living member per (role, name)."""

    def __init__(self, lost_after_s: float, names: dict[str, tuple[int, str]]) -> None:
        self.lost_after_s = lost_after_s
        #: "role/name" -> (incarnation, producer) of the newest process; to be kept on disk.
        self.names = names
        self.members: dict[str, Entry] = {}
        self._superseded: set[tuple[str, str]] = set()

    def register(self, message: Register, peer: bytes, now: float) -> tuple[Entry, Entry | None] | None:
        """The member, and the one it replaces if any.

        None: a newer process bears the name and lives, so this one is refused.
        """
        key = f"{message.role}/{message.name}"
        holder = next((m for m in self.members.values() if m.key == key), None)
        if (key, message.producer) in self._superseded and holder is not None and holder.alive:
            return None
        incarnation, producer = self.names.get(key, (-1, ""))
        if producer != message.producer:
            incarnation += 1
            self.names[key] = (incarnation, message.producer)
        self._superseded.discard((key, message.producer))
        replaced = None
        if holder is not None:
            del self.members[holder.producer]
            if holder.producer != message.producer:
                if len(self._superseded) >= MAX_PEERS:
                    self._superseded.clear()
                self._superseded.add((key, holder.producer))
                replaced = holder
        entry = Entry(
            message.role, message.name, message.producer, message.pid, message.host, peer,
            incarnation, now, list(message.slices), stage_began=now,
        )  # fmt: skip
        if holder is not None and replaced is None and holder.alive:
            entry.state, entry.stats = holder.state, holder.stats
        self.members[entry.producer] = entry
        return entry, replaced

    def heartbeat(self, producer: str, message: Heartbeat, peer: bytes, now: float) -> Entry | None:
        """The member that beats; None if it is not one (any more) and must register."""
        entry = self.members.get(producer)
        if entry is None or not entry.alive:
            return None
        entry.peer, entry.heard = peer, now
        entry.state = STATES.get(message.state, "starting")
        entry.stage, entry.stage_began = message.stage, now - message.since_s
        entry.deadline_s = min(max(0.0, message.deadline_s), MAX_DEADLINE_S)
        entry.failure, entry.stats = message.failure, plain_stats(message.stats)
        entry.beats += 1
        return entry

    def expire(self, now: float) -> list[Entry]:
        """Mark as lost who is silent for too long; the newly lost."""
        lost = []
        for entry in self.members.values():
            if entry.alive and now - entry.heard > self.lost_after_s + entry.deadline_s:
                entry.state = "lost"
                entry.failure = entry.failure or (
                    f"silent for {now - entry.heard:.1f} s in stage {entry.stage!r}, which may last "
                    f"{entry.deadline_s:.1f} s (lost after {self.lost_after_s:.1f} s more)"
                )
                lost.append(entry)
        return lost

    def gone(self, role: str, name: str, pid: int, reason: str) -> Entry | None:
        """Its process has ended; the member if it was this process."""
        for entry in self.members.values():
            if entry.role == role and entry.name == name and pid in (0, entry.pid):
                if entry.state == "draining":
                    return self.leave(entry.producer)
                entry.state, entry.failure = "failed", reason
                return entry
        return None

    def leave(self, producer: str) -> Entry | None:
        """It ended in order and is forgotten."""
        return self.members.pop(producer, None)

    def grant_lease(self, now: float) -> None:
        """The registry itself was away: nobody is late because of that."""
        for entry in self.members.values():
            if entry.alive:
                entry.heard = now

    def living(self, role: str = "") -> list[Entry]:
        """Living members, of one role if given, ordered by role and name."""
        found = [m for m in self.members.values() if m.alive and role in ("", m.role)]
        return sorted(found, key=lambda m: (m.role, m.name))
