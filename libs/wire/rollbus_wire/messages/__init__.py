"""Every message of the wire, one dataclass each, and the table of their fields.

Planes: ``peer`` (environment or robot <-> hub), ``data`` (hub <-> actor), ``registry`` (any
service <-> broker), ``store`` (actor, learner <-> broker), ``weights`` (host <-> host) and ``policy``
(anyone <-> a policy service). A message is named by its snake-case class name. Unknown fields are
ignored, missing ones take their default.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import MISSING, fields
from functools import lru_cache
from typing import Any, Dict, Tuple, Type

import numpy as np

from rollbus_wire.errors import WireError, short

from .base import PROTOCOL, Array, Arrays, Message
from .common import Fault, Ping, Pong
from .contents import CONTENTS, TEXTS
from .data import Act, Attach, Attached, Detach, Detached, Tick, Waiting
from .peer import GetState, Goodbye, Hello, Observe, Outcome, Reset, SetState, Step, Welcome
from .policy import Decide, Decided
from .registry import (
    Applied,
    Assign,
    CheckpointSaved,
    Command,
    Done,
    Evaluated,
    Gone,
    Heartbeat,
    Leave,
    ListMembers,
    Members,
    Notice,
    Register,
    Registered,
    Release,
    Released,
    SlicesChanged,
)
from .store import (
    Annotate,
    Annotated,
    Batch,
    Cancel,
    Commit,
    Committed,
    Consumed,
    Durable,
    FetchUnannotated,
    OpenTable,
    Sample,
    TableState,
    Ticket,
    TicketRequest,
    Unannotated,
)
from .weights import FetchChunk, FetchWeights, WeightChunk, WeightManifest

__all__ = [
    "PLANES", "PROTOCOL", "Array", "Arrays", "Message", "fields_hash", "from_data", "to_data",
    "Act", "Annotate", "Annotated", "Applied", "Assign", "Attach", "Attached", "Batch", "Cancel",
    "CheckpointSaved", "Command", "Commit", "Committed", "Consumed", "Detach", "Detached", "Done", "Durable",
    "Decide", "Decided", "Evaluated", "Fault", "FetchChunk", "FetchUnannotated", "FetchWeights",
    "GetState", "Gone", "Goodbye",
    "Heartbeat", "Hello", "Leave", "ListMembers", "Members", "Notice", "Observe", "OpenTable", "Outcome",
    "Ping", "Pong",
    "Register", "Registered", "Release", "Released", "Reset", "Sample", "SetState", "SlicesChanged",
    "Step", "TableState", "Tick", "Ticket", "TicketRequest", "Unannotated", "Waiting", "WeightChunk",
    "WeightManifest", "Welcome",
]  # fmt: skip

PLANES = {
    "any": (Fault, Ping, Pong),
    "peer": (
        Hello, Welcome, Reset, Step, Observe, GetState, SetState, Outcome, Goodbye,
    ),
    "data": (Attach, Attached, Tick, Act, Waiting, Detach, Detached),
    "registry": (
        Register, Registered, Heartbeat, Assign, Release, Released, SlicesChanged, Notice, Applied,
        CheckpointSaved, Evaluated, Gone, Command, Done, ListMembers, Members, Leave,
    ),
    "store": (
        OpenTable, TableState, TicketRequest, Ticket, Commit, Committed, Cancel, Sample, Batch,
        Consumed, Durable, FetchUnannotated, Unannotated, Annotate, Annotated,
    ),
    "weights": (FetchWeights, WeightManifest, FetchChunk, WeightChunk),
    "policy": (Decide, Decided),
}  # fmt: skip

#: The types of each annotation on arrival; `CONTENTS` has what is checked beyond.
_CHECKS: Dict[str, Any] = {
    "int": int,
    "float": (float, int),
    "str": str,
    "bool": bool,
    "Array": np.ndarray,
    "Arrays": dict,
    "Dict[str, Any]": dict,
    "Dict[str, int]": dict,
    "List[int]": list,
    "List[Any]": list,
    "List[bytes]": list,
}


class _Table:
    """Field table of one message class."""

    def __init__(self, cls: Type[Message]) -> None:
        self.cls = cls
        self.checks: Dict[str, Any] = {}
        self.contents: Dict[str, Any] = {}
        #: The type that a field has as a rule, and what is checked of values of just that type.
        self.usual: Dict[str, Tuple[type, Any]] = {}
        self.required = set()
        for item in fields(cls):  # type: ignore[arg-type]
            annotation = str(item.type)
            optional = annotation.startswith("Optional[")
            annotation = annotation[9:-1] if optional else annotation
            check = _CHECKS[annotation]
            if annotation in CONTENTS:
                self.contents[item.name] = CONTENTS["text" if item.name in TEXTS else annotation]
            types = check if isinstance(check, tuple) else (check,)
            self.checks[item.name] = types + ((type(None),) if optional else ())
            # What `CONTENTS` has for whole numbers only tells flags from them.
            content = None if types[0] is int else self.contents.get(item.name)
            self.usual[item.name] = (types[0], content)
            if item.default is MISSING and item.default_factory is MISSING:
                self.required.add(item.name)

    def check(self, key: str, value: Any) -> None:
        """Raise `WireError` unless ``value`` is what the field ``key`` may hold."""
        if not isinstance(value, self.checks[key]):
            raise WireError("%s.%s: got %s" % (self.cls.kind, key, type(value).__name__))
        if key in self.contents and value is not None and (problem := self.contents[key](value)):
            raise WireError("%s.%s: %s" % (self.cls.kind, key, problem))


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


_TABLES: Dict[str, _Table] = {}
for _plane, _classes in PLANES.items():
    for _cls in _classes:
        _cls.plane, _cls.kind = _plane, _snake(_cls.__name__)
        _TABLES[_cls.kind] = _Table(_cls)


@lru_cache(maxsize=1)
def fields_hash() -> str:
    """Hash of the field table: equal on both sides when they know the same messages."""
    lines = [
        "%s.%s:%s" % (kind, item.name, item.type)
        for kind, table in sorted(_TABLES.items())
        for item in fields(table.cls)  # type: ignore[arg-type]
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def to_data(message: Message) -> Dict[str, Any]:
    """The body map of ``message``; fields that are None or implied are left out."""
    implied = message.implied()
    return {key: value for key, value in message.__dict__.items() if value is not None and key not in implied}


def from_data(kind: Any, data: Any) -> Message:
    """The message ``kind`` with body ``data``, each field checked against its declared type."""
    table = _TABLES.get(kind) if isinstance(kind, str) else None
    if table is None:
        raise WireError("unknown message %s" % short(kind))
    if not isinstance(data, dict):
        raise WireError("%s: the body is a %s, not a map" % (kind, type(data).__name__))
    usual = table.usual
    known = {}
    for key, value in data.items():
        field = usual.get(key)
        if field is None:
            continue
        if type(value) is not field[0] or (field[1] is not None and field[1](value)):
            table.check(key, value)
        known[key] = value
    known.update(table.cls.filled(known))
    if not table.required <= known.keys():
        missing = table.required.difference(known)
        raise WireError("%s: missing %s" % (kind, ", ".join(sorted(missing))))
    return table.cls(**known)
