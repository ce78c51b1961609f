"""Live progress: a rich panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rich.cells import cell_len
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rollbus_launch.motion import Motion

LINE_EVERY_S = 5.0
#: State of a learner that has ended and is shown as it was last.
ENDED = "ended"
#: Beyond this an estimate of the time left says nothing.
MAX_ETA_S = 100 * 86400

#: Below this share of its time the busiest is no bottleneck, and below the second nothing has happened yet.
IDLE_SHARE, NOTHING_SHARE = 0.5, 0.005
#: The progress bar is at most this wide, and narrower on a narrow terminal.
BAR_WIDTH = 60
#: Role -> what to do if it is the bottleneck; one beyond the cores of the machine gains nothing.
WHAT_TO_SCALE = {
    "hub": "more hubs (env.hubs={more}), or environments in processes of their own (env.placement=workers)",
    "actor": "more actors (rollbus scale actor={more}), another engine or device (actor.engine, .device)",
    "learner": "more threads or another device (learner.threads, learner.device), bf16 for images "
    "(learner.precision), fewer epochs or larger minibatches; more actors will not help",
}

#: Roles at which environments dial in.
DIALLED = ("hub", "evaluator")
#: Reason of a refusal -> what dialled.
WHY_REFUSED = {
    "handshake": "somebody without the right key", "unknown-key": "a key that is not on the list",
    "revoked": "a revoked key", "role": "a key of role {role}", "message": "a message that no peer may send",
    "sender": "a key in another's name",
}  # fmt: skip

Members = Sequence[Mapping[str, Any]]


def by_role(members: Members, role: str) -> list[Mapping[str, Any]]:
    """Stats of all members with ``role``."""
    return [m["stats"] for m in members if m["role"] == role and m.get("stats")]


def snapshot(members: Members, total_steps: int, started: float) -> dict[str, Any]:
    """The numbers that progress shows, from the members' last heartbeats."""
    learner = next(iter(by_role(members, "learner")), {})
    hubs, actors = by_role(members, "hub"), by_role(members, "actor")
    idle = has_ended(members) or any(m["role"] == "learner" for m in _lost(members))
    steps, rate = learner.get("env_steps", 0), 0.0 if idle else learner.get("steps_per_s", 0.0)
    left = max(0, total_steps - steps)
    return {
        "elapsed_s": time.monotonic() - started,
        "env_steps": steps,
        "updates": learner.get("updates", 0),
        "steps_per_s": rate,
        "hub_steps_per_s": sum(h.get("steps_per_s", 0.0) for h in hubs),
        "actor_steps_per_s": sum(a.get("steps_per_s", 0.0) for a in actors),
        "return_mean": learner.get("return_mean"),
        "lag": learner.get("lag_mean"),
        "ticket_wait": max((a.get("ticket_wait_fraction", 0.0) for a in actors), default=0.0),
        "bottleneck": bottleneck(members),
        "eta_s": left / rate if rate else None,
        "actors": len(actors),
    }


def bottleneck(members: Members) -> str:
    """Environments where none is there, who is lost, or the busiest role by its share of time at work; "-"
    while nobody has worked. Once the learner has ended, the evaluation.
    """
    learns = any(m["role"] == "learner" and m.get("state") != ENDED for m in members)
    for each in awaited(m for m in members if m["role"] == "evaluator" and not learns):
        return f"evaluation (waits for {each.missing} of {each.wanted} rows to dial in)"
    if has_ended(members):
        return "evaluation"
    if stands_still(members):
        return "environments (none is there)"
    if lost := _lost(members):
        return f"{lost[0]['name']} (lost, silent for {lost[0]['silent_s']:.0f} s)"
    role, share = _busiest(members)
    return f"{role} ({share:.0%} busy)" if role else "-"


def has_ended(members: Members) -> bool:
    """Whether the learner has ended, and an evaluation is waited for."""
    return any(m["role"] == "learner" and m.get("state") == ENDED for m in members)


def advice(members: Members) -> str:
    """What would make the run faster; "" while nothing is known."""
    if stands_still(members):
        return "let environments dial in (run_env, docs/environments.md)"
    if any(each.get("rows_missing") for role in DIALLED for each in by_role(members, role)):
        return "let the environments that are missing dial in"
    if _lost(members):
        return ""
    role, share = _busiest(members)
    if not role:
        return ""
    if share < IDLE_SHARE:
        return "they wait for each other: more slices (env.num_slices) or lag (algorithm.max_lag)"
    return WHAT_TO_SCALE[role].format(more=len(by_role(members, role)) + 1)


def _lost(members: Members) -> list[Mapping[str, Any]]:
    return [member for member in members if member.get("state") == "lost"]


def stands_still(members: Members) -> bool:
    """Whether all environments are to dial in and none is there."""
    hubs = by_role(members, "hub")
    return bool(hubs) and all(
        hub.get("rows_wanted") and hub["rows_missing"] == hub["rows_wanted"] for hub in hubs
    )


class Awaited(NamedTuple):
    """Rows that have not dialled in at a hub, or are gone, and what it refused where they dial."""

    hub: str
    missing: int
    wanted: int
    address: str
    refused: str

    def __str__(self) -> str:
        return f"{self.hub} waits for {self.missing} of {self.wanted} rows at {self.address}{self.refused}"


def awaited(members: Iterable[Mapping[str, Any]]) -> list[Awaited]:
    """Hubs and evaluations that wait for environments to dial in."""
    found = []
    for member in members:
        stats = member.get("stats") or {}
        if member["role"] in DIALLED and stats.get("rows_missing"):
            rows = stats["rows_missing"], stats["rows_wanted"], stats["rows_dial"]
            found.append(Awaited(member["name"], *rows, _refused(stats.get("refused") or {})))
    return found


def _refused(counts: Mapping[str, int]) -> str:
    """What was refused at the socket of environments, "plane/reason/role" -> count."""
    found = {
        WHY_REFUSED.get(reason, reason).format(role=role)
        for plane, reason, role in (what.split("/") for what in counts) if plane == "peer"
    }  # fmt: skip
    return f"; refused there since it started: {', '.join(sorted(found))} (its log says who)" if found else ""


def _busiest(members: Members) -> tuple[str, float]:
    shares = {}
    for role in WHAT_TO_SCALE:
        busy = [s["busy"] for s in by_role(members, role) if s.get("busy") is not None]
        if busy:
            shares[role] = sum(busy) / len(busy)
    role = max(shares, key=lambda r: shares[r], default="")
    return (role, shares[role]) if role and shares[role] >= NOTHING_SHARE else ("", 0.0)


class Display:
    """Shows what a session reports. ``goal`` is in ``unit``, "steps" or "updates"."""

    def __init__(self, title: str, goal: int, unit: str = "steps") -> None:
        self.title, self.goal, self.unit = title, goal, unit
        self.console = Console(file=sys.stderr)
        self._started = time.monotonic()
        self._motion = Motion()
        self._evaluation = ""
        self._next_line = 0.0
        self._awaited: dict[str, Awaited] = {}
        self._learner: Mapping[str, Any] = {}
        #: What the learner had done at its end.
        self._final: Mapping[str, int] = {}
        #: Whether all rows have been there.
        self._begun = False
        self._live: Live | None = None

    def __enter__(self) -> Display:
        if self.console.is_terminal:
            self._live = Live(console=self.console, refresh_per_second=4, transient=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def update(self, members: Members, evaluation: Mapping[str, Any] | None) -> None:
        """New heartbeats came."""
        members = self._with_learner(members)
        self._note_awaited(awaited(members))
        now = self._now(members)
        if self._live:
            self._live.update(self._panel(now))
        elif time.monotonic() >= self._next_line and self._motion.begun:
            self._next_line = time.monotonic() + LINE_EVERY_S
            self.console.print(self._line(now), highlight=False, soft_wrap=True)

    def _with_learner(self, members: Members) -> Members:
        """``members``, with the learner as it was last if it has left."""
        if any(m["role"] == "learner" for m in members):
            self._learner = next((m for m in members if m["role"] == "learner" and m.get("stats")), {})
            return members
        if not self._learner:
            return members
        return [
            *members,
            {**self._learner, "state": ENDED, "stats": {**self._learner["stats"], **self._final}},
        ]

    def finished(self, env_steps: int, updates: int) -> None:
        """The learner's last word, which is newer than its last heartbeat."""
        self._final = {"env_steps": env_steps, "updates": updates}

    def _now(self, members: Members) -> dict[str, Any]:
        """The numbers to show: no rate before there is one, no estimate of the end while nothing moves."""
        now, at = snapshot(members, self.goal, self._started), time.monotonic()
        done = now["updates" if self.unit == "updates" else "env_steps"]
        if by_role(members, "learner"):
            self._motion.note(at, done)
        rate = self._motion.rate(at) if self.unit == "updates" else now["steps_per_s"]
        still_s = 0.0 if has_ended(members) else self._motion.still_s(at)
        if still_s or has_ended(members):
            rate = 0.0
        elif not (rate and self._motion.begun):
            rate = None
        moves = rate and not stands_still(members) and not _lost(members)
        left_s = max(0, self.goal - done) / rate if rate and moves else None
        return now | {"done": done, "rate": rate, "eta_s": left_s, "still_s": still_s}

    def _note_awaited(self, found: Sequence[Awaited]) -> None:
        """Say when more is waited for than before, or somebody else was refused."""
        for now in found:
            before = self._awaited.get(now.hub)
            missing, refused = (before.missing, before.refused) if before else (now.wanted, "")
            if before is None and self._begun or now.missing > missing or now.refused != refused:
                self.note(str(now))
        self._begun = self._begun or not found
        self._awaited = {each.hub: each for each in found}

    def evaluated(self, result: Mapping[str, Any]) -> None:
        """An evaluation came in."""
        rate = result.get("success_rate")
        self._evaluation = (
            f"evaluation at {self._place(result)}: return {result['mean_return']:.1f} "
            f"± {result['ci95']:.1f} over {len(result['episodes'])} episodes"
            + (f", success {rate:.0%}" if rate is not None else "")
            + (f"; {result['lost']} of them LOST: the environment failed" if result.get("lost") else "")
        )
        self.note(self._evaluation)

    def _place(self, result: Mapping[str, Any]) -> str:
        if self.unit == "updates":
            return f"update {result['version'].split('.')[-1]}"
        return f"{result['env_steps']:,} steps"

    def note(self, text: str) -> None:
        """A line that stays."""
        self.console.print(text, highlight=False, soft_wrap=True, markup=False)

    def _line(self, s: Mapping[str, Any]) -> str:
        return (
            f"{s['elapsed_s']:6.1f} s  {s['done']:>9,} / {self.goal:,} {self.unit}  "
            f"{_rate(s['rate'])}/s  return {number(s['return_mean'])}  lag {number(s['lag'])}  "
            f"bottleneck: {s['bottleneck']}{_outlook(s)}"
        )

    def _panel(self, s: Mapping[str, Any]) -> Group:
        table = Table.grid(padding=(0, 2))
        rates = {"actors": s["actor_steps_per_s"] or None, "hubs": s["hub_steps_per_s"] or None}
        if self.unit == "steps":
            rates = {"learner": s["rate"], **rates}
        for left, right in (
            ("updates" if self.unit == "steps" else "updates/s",
             f"{s['updates']:,}" if self.unit == "steps" else number(s["rate"])),
            ("steps/s", "   ".join(f"{who} {_rate(rate)}" for who, rate in rates.items())),
            ("return", number(s["return_mean"])),
            ("lag", f"{number(s['lag'])}   waiting for tickets {s['ticket_wait']:.0%}"),
            ("bottleneck", s["bottleneck"]),
            ("time", f"{duration(s['elapsed_s'])}{_outlook(s)}"),
        ):  # fmt: skip
            table.add_row(Text(left, style="bold"), right)
        return Group(Text(self.title, style="bold"), self._bar(s["done"]), table)

    def _bar(self, done: int) -> Table:
        """The bar, and beside it what is done: the bar gets what room is left."""
        goal = max(1, self.goal)
        told = f"{done:,} of {self.goal:,} {self.unit} ({min(100, 100 * done // goal)}%)"
        if not self._motion.known:
            told = f"starting, to {self.goal:,} {self.unit}"
        width = max(4, min(BAR_WIDTH, self.console.width - cell_len(told) - 2))
        line = Table.grid(padding=(0, 2))
        line.add_row(ProgressBar(total=goal, completed=done, width=width), Text(told, no_wrap=True))
        return line


def _outlook(s: Mapping[str, Any]) -> str:
    """How long it will take, or has stood still; "" while that is not known."""
    if s["still_s"]:
        return f", nothing moves for {duration(s['still_s'])}"
    return f", {duration(s['eta_s'])} left" if s["eta_s"] is not None else ""


def _rate(per_s: float | None) -> str:
    return "-" if per_s is None else f"{per_s:,.0f}"


def duration(seconds: float) -> str:
    """Seconds for people: "42 s", "3 min 05 s", "1 h 05 min", "2 d 03 h"; "-" above 100 days."""
    if seconds > MAX_ETA_S:
        return "-"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    minutes = round(seconds / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60:02} min"
    hours = round(seconds / 3600)
    return f"{hours // 24} d {hours % 24:02} h"


def number(value: Any) -> str:
    """Short form of a number that may be missing."""
    return "-" if value is None else f"{value:.4g}"
