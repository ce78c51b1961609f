"""Messages of every plane. docs/protocol.md is the reference."""

from __future__ import annotations

from dataclasses import dataclass

from .base import Message


@dataclass
class Fault(Message):
    """What was asked cannot be done. The session goes on unless the text says otherwise."""

    code: str
    text: str
    #: Service, stage or row that failed.
    where: str = ""
    traceback: str = ""


@dataclass
class Ping(Message):
    """Are you there? Answered by `Pong` on every plane."""


@dataclass
class Pong(Message):
    """I am."""
