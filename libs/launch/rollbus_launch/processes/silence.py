"""What people are told of processes that live and have gone silent: where each hangs, then its stack."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from rollbus_wire.places import place_of_stack

#: How the registry's own word of a silent member begins; it says nothing more.
_SILENT = "silent for"
Process = tuple[str, int]


def process_of(member: dict[str, Any]) -> Process:
    """Host and process id."""
    return member["host"], member["pid"]


def lost(members: Iterable[dict[str, Any]]) -> dict[Process, list[dict[str, Any]]]:
    """All members of each process of which one is lost; first those that are, a hub before others."""
    members = list(members)
    gone = {process_of(member) for member in members if member["state"] == "lost"}
    rank = lambda m: (m["state"] != "lost", m["role"] != "hub", m["name"])  # noqa: E731
    return {each: sorted((m for m in members if process_of(m) == each), key=rank) for each in sorted(gone)}


def own_failure(member: dict[str, Any]) -> str:
    """What the member said of itself, as far as anything."""
    text = (member.get("failure") or "").strip()
    return "" if text.startswith(_SILENT) else text


def told(process: list[dict[str, Any]], stack: str, hung_after_s: float = 0.0, *, shown: bool = False) -> str:
    """What is known of the members of one process, for people: where it hangs comes first.

    ``shown``: people have seen its stack.
    """
    first, *others = process
    place = place_of_stack(stack)
    text = f"{first['name']} is lost: silent for {first['silent_s']:.1f} s in stage {first['stage']!r}"
    if place:
        text += f", in {place}"
    if others:
        text += f" (with {', '.join(m['name'] for m in others)}, of the same process)"
    if place and first["role"] == "hub":
        text += "; env.step_timeout_s ends no step of an environment in the hub (env.placement: inline)"
    if hung_after_s:
        text += f"; it is killed and starts again if that lasts {hung_after_s:g} s more (deploy.hung_after_s)"
    failures = [f"last failure: {failure}" for m in process if (failure := own_failure(m))]
    return "\n".join([text, *failures, "(its stack stands above)" if shown else stack])


class Silence:
    """Which silent processes people have been told of."""

    def __init__(self) -> None:
        #: Those that were asked for their stacks, and those that were told of.
        self._asked: set[Process] = set()
        self._told: set[Process] = set()
        self._stacks: set[str] = set()

    def seen(self, found: Iterable[Process]) -> tuple[set[Process], set[Process]]:
        """Of the silent processes ``found``: those to ask for a stack now, and those to tell of now."""
        found = set(found)
        tell = self._asked & found - self._told
        self._told = (self._told | tell) & found
        self._asked = found - self._told
        return self._asked, tell

    def shown(self, stack: str) -> bool:
        """Whether a stack like this one, but for numbers, was shown before; from now on it was."""
        kind = re.sub(r"0x\w+|\d+", "0", stack)
        before = kind in self._stacks
        self._stacks.add(kind)
        return before
