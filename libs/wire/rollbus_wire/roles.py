"""Which role may send which message to which socket: the whole table. docs/security.md."""

from __future__ import annotations

from typing import Dict, FrozenSet, Tuple, Type

from . import messages as m
from .errors import AccessDenied
from .messages import Message

_MEMBER = (m.Register, m.Heartbeat, m.Leave, m.ListMembers)

#: Plane -> role -> messages, beside `Ping`, `Pong` and `Fault`. A role that is absent cannot even connect.
MAY_SEND: Dict[str, Dict[str, Tuple[Type[Message], ...]]] = {
    "peer": {"peer": (m.Hello, m.Outcome, m.Goodbye)},
    "data": {"actor": (m.Attach, m.Act, m.Waiting, m.Detach)},
    "registry": {
        "hub": _MEMBER + (m.SlicesChanged,),
        "actor": _MEMBER + (m.Released, m.Applied),
        "source": _MEMBER,
        "learner": _MEMBER + (m.Notice, m.CheckpointSaved),
        "evaluator": _MEMBER + (m.Evaluated,),
        "annotator": _MEMBER,
        "admin": _MEMBER + (m.Gone, m.Command, m.Done, m.CheckpointSaved),
    },
    "store": {
        "actor": (m.TicketRequest, m.Commit, m.Cancel),
        "source": (m.TicketRequest, m.Commit, m.Cancel),
        "learner": (m.OpenTable, m.Sample, m.Consumed, m.Durable),
        "annotator": (m.FetchUnannotated, m.Annotate),
    },
    "weights": {"actor": (m.FetchWeights, m.FetchChunk)},
    "policy": {"client": (m.Decide,)},
}
#: Who binds each plane, that is, whose key whoever dials it must expect.
BOUND_BY = {
    "peer": "hub", "data": "hub", "registry": "broker", "store": "broker", "weights": "learner",
    "policy": "actor",
}  # fmt: skip
#: Role -> the service whose address it is given by hand.
DIALS = {
    "peer": "hub", "client": "actor", "hub": "broker", "actor": "broker", "source": "broker",
    "learner": "broker", "evaluator": "broker", "annotator": "broker", "admin": "broker",
}  # fmt: skip
ROLES = ("broker",) + tuple(DIALS)
#: As what a key of this role may join the registry, where that is not its own name.
_JOINS_AS = {"admin": "launcher"}
_EVERYBODY = (m.Ping, m.Pong, m.Fault)
#: (plane, role) -> kinds of messages.
_KINDS: Dict[Tuple[str, str], FrozenSet[str]] = {
    (plane, role): frozenset(cls.kind for cls in classes + _EVERYBODY)
    for plane, roles in MAY_SEND.items()
    for role, classes in roles.items()
}
_ALL_KINDS = frozenset(cls.kind for classes in m.PLANES.values() for cls in classes)


def may_connect(plane: str, role: str) -> bool:
    """Whether a key of ``role`` may dial a socket of ``plane`` at all."""
    return (plane, role) in _KINDS


def check_dialler(plane: str, name: str, role: str) -> None:
    """Raise `AccessDenied` if key ``name`` of ``role`` has no place at sockets of ``plane``."""
    if not may_connect(plane, role):
        wanted = " or ".join(sorted(MAY_SEND[plane]))
        raise AccessDenied(
            "key %s has role %s, which has no place at a %s socket; take a key of role %s "
            "(rollbus keys create NAME --role %s)" % (name, role, plane, wanted, wanted)
        )


def refusal(plane: str, role: str, kind: object) -> str:
    """Why ``role`` may not send messages of ``kind`` to a socket of ``plane``; empty: it may.

    What is no kind of message at all is not refused here.
    """
    if isinstance(kind, str) and kind in _ALL_KINDS and kind not in _KINDS.get((plane, role), ()):
        return "a key of role %s may not send %s to a %s socket" % (role, kind, plane)
    return ""


def join_refusal(role: str, message: Message) -> str:
    """Why a key of ``role`` may not join as ``message`` says; empty: it may, or this joins nothing."""
    if isinstance(message, m.Register) and message.role != _JOINS_AS.get(role, role):
        return "a key of role %s may not join as %s" % (role, message.role[:32])
    return ""
