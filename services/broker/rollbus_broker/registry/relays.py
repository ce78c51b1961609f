"""Messages that pass through the registry, and the last ones for those who come late."""

from __future__ import annotations

from typing import Any

from rollbus_core.version import Version
from rollbus_wire.messages import (
    Applied,
    CheckpointSaved,
    Evaluated,
    Message,
    Notice,
    to_data,
)

#: Policies whose last notice is kept.
MAX_POLICIES = 256
#: Message class -> roles that get it.
RELAYED: dict[type[Message], tuple[str, ...]] = {
    Notice: ("actor",),
    Applied: ("learner",),
    CheckpointSaved: ("evaluator", "launcher"),
    Evaluated: ("learner", "launcher"),
}


class LastOnes:
    """The newest notice of each policy and the newest checkpoint."""

    def __init__(self) -> None:
        self._notices: dict[str, Notice] = {}
        self._checkpoint: CheckpointSaved | None = None

    def keep(self, message: Message) -> None:
        """Remember ``message`` if late joiners need it. Raises `WireError` for one without a version."""
        Version.of(message.version)  # type: ignore[attr-defined]  # all of `RELAYED` have one
        if isinstance(message, Notice):
            self._notices.pop(message.policy, None)
            self._notices[message.policy] = message
            if len(self._notices) > MAX_POLICIES:
                del self._notices[next(iter(self._notices))]
        elif isinstance(message, CheckpointSaved):
            self._checkpoint = message

    def notices(self) -> list[dict[str, Any]]:
        """For `Registered.notices`."""
        return [to_data(notice) for notice in self._notices.values()]

    def messages(self, role: str) -> list[Message]:
        """The kept messages that a member of ``role`` should have."""
        kept = [*self._notices.values(), *([self._checkpoint] if self._checkpoint else [])]
        return [message for message in kept if role in RELAYED[type(message)]]
