"""How two configurations differ, and which differences make another run of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rollbus_core.config.models import EnvConfig
from rollbus_core.config.recipe import Recipe

#: Keys of ``env`` that all environments have and that are no part of the task.
ARRANGEMENT = frozenset(EnvConfig.model_fields) - {
    "name", "frame_stack", "action_repeat", "time_limit", "options",
}  # fmt: skip


class Change(NamedTuple):
    """A setting that differs; None where a plug-in has no such key."""

    key: str
    old: object
    new: object

    @property
    def is_identity(self) -> bool:
        """Whether a run with another value is another run: its task, its policy, its algorithm."""
        section, _, name = self.key.partition(".")
        if section == "env":
            return name not in ARRANGEMENT and name not in ("time_limit", "options")
        return section == "policy" or self.key == "algorithm.name"


def changes(old: Recipe, new: Recipe) -> Iterator[Change]:
    """All settings that differ, section by section; the name of a plug-in before its keys."""
    for section in type(new).model_fields:
        before, after = dict(getattr(old, section)), dict(getattr(new, section))
        for key in sorted(before.keys() | after.keys(), key=lambda key: (key != "name", key)):
            if before.get(key) != after.get(key):
                yield Change(f"{section}.{key}", before.get(key), after.get(key))
